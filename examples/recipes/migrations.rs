//! Migrations of sqlx under a lock: all nodes that start do it one after the other. The first one migrates, and the others
//! find it done.
//!
//! On PostgreSQL and MySQL sqlx takes an advisory lock of its own. The lock here is needed
//! - on SQLite, where sqlx takes none;
//! - where an advisory lock does not work, such as behind PgBouncer in transaction mode: there switch sqlx's own off, by
//!   `let mut migrator = sqlx::migrate!(); migrator.set_locking(false);`;
//! - for a step that must not run beside another node's, such as filling the new tables.

use std::error::Error;
use std::time::Duration;

use dblock::LockManager;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

static MIGRATOR: Migrator = sqlx::migrate!();

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = SqliteConnectOptions::new()
        .filename("shop.db")
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await?;
    // A file of its own: a long migration lets nobody write to shop.db, and the lease is renewed meanwhile.
    let locks = LockManager::connect("sqlite://locks.db").await?;

    let migrate = async {
        MIGRATOR.run(&pool).await?;
        // Fill the new tables here, unless they are filled: each node comes here, at each start.
        Ok::<_, sqlx::Error>(())
    };
    let wait = Duration::from_mins(5);
    locks.lock("migrations").wait(wait).run(migrate).await??;

    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
