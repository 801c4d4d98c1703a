use dblock::distributed_lock;
use dblock_ui_tests::OrderError;
use sqlx::{Postgres, Transaction};

#[distributed_lock(key = "order:{id}", tx = tx)]
async fn settle(id: u64, tx: &Transaction<'_, Postgres>) -> Result<(), OrderError> {
    let _ = tx;
    Ok(())
}

fn main() {
    // One mistake is one error: the function is still there.
    let _ = settle;
}
