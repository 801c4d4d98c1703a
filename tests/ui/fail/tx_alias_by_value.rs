use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

use sqlx::{Postgres, Transaction};

type Tx = Transaction<'static, Postgres>;

#[distributed_lock(key = "order", tx = tx)]
async fn settle(mut tx: Tx) -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    let _ = settle;
}
