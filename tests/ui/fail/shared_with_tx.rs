use dblock::distributed_lock;
use dblock_ui_tests::OrderError;
use sqlx::{Postgres, Transaction};

#[distributed_lock(key = "order:{id}", limit = 8, tx = tx)]
async fn settle(id: u64, tx: &mut Transaction<'_, Postgres>) -> Result<(), OrderError> {
    sqlx::query("UPDATE orders SET settled = true").execute(&mut **tx).await.unwrap();
    Ok(())
}

#[distributed_lock(key = "order:{id}", tx = tx, shared)]
async fn look(id: u64, tx: &mut Transaction<'_, Postgres>) -> Result<(), OrderError> {
    sqlx::query("SELECT 1").execute(&mut **tx).await.unwrap();
    Ok(())
}

fn main() {
    // One mistake is one error: the functions are still there.
    let _ = (settle, look);
}
