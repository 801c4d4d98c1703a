//! Diesel in a program that is not async: the attribute on a plain `fn`, which gets the connection as an argument.

use std::error::Error;
use std::time::Duration;

use dblock::{LockError, LockManager, distributed_lock};
use diesel::connection::SimpleConnection as _;
use diesel::{Connection as _, RunQueryDsl as _, SqliteConnection, sql_query, sql_types};

#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Database(#[from] diesel::result::Error),
    #[error("the lease may end before the next step does")]
    TooLate,
    #[error("there is no such order, or it is settled already")]
    NothingToSettle,
}

#[distributed_lock(key = "order:{order}", ttl = "30s", wait = "5s", manager = locks)]
fn settle(db: &mut SqliteConnection, locks: &LockManager, order: i64) -> Result<(), ShopError> {
    write_invoice(order);
    // A lost lease cannot stop a plain `fn`, so it asks before each step whether there is time for it.
    let lock = dblock::current().ok_or(ShopError::TooLate)?;
    if lock.remaining() < Duration::from_secs(10) {
        return Err(ShopError::TooLate);
    }
    let settled = sql_query("UPDATE orders SET settled_by = ? WHERE id = ? AND settled_by IS NULL")
        .bind::<sql_types::BigInt, _>(lock.fence_token())
        .bind::<sql_types::BigInt, _>(order)
        .execute(db)?;
    if settled == 0 {
        return Err(ShopError::NothingToSettle);
    }
    Ok(())
}

fn write_invoice(order: i64) {
    println!("the invoice of order {order} is written");
}

fn main() -> Result<(), Box<dyn Error>> {
    let locks = LockManager::builder_for_url("sqlite://shop.db?mode=rwc")?.build_lazy()?;
    locks.block_on(locks.admin().migrate())?;
    let mut db = SqliteConnection::establish("shop.db")?;
    // The locks are in the same file, so diesel waits for their short writes.
    db.batch_execute("PRAGMA busy_timeout = 5000")?;
    settle(&mut db, &locks, 42)?;
    locks.block_on(locks.shutdown(Duration::from_secs(5)));
    Ok(())
}
