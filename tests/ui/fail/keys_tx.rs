use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(keys = ["order:{order_id}", "customer:{name}"], tx = tx)]
async fn settle(
    order_id: u64,
    name: &str,
    tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>,
) -> Result<(), OrderError> {
    Ok(())
}

fn main() {}
