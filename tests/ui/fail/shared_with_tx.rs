use dblock::distributed_lock;
use dblock_ui_tests::OrderError;
use sqlx::{Postgres, Transaction};

#[distributed_lock(key = "order:{id}", limit = 8, tx = tx)]
async fn settle(id: u64, tx: &mut Transaction<'_, Postgres>) -> Result<(), OrderError> {
    sqlx::query("UPDATE orders SET settled = true").execute(&mut **tx).await.unwrap();
    Ok(())
}

fn main() {
    // One mistake is one error: the function is still there.
    let _ = settle;
}
