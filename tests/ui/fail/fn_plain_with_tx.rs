use dblock::{distributed_lock, optimistic_retry};
use dblock_ui_tests::{OrderError, StockError};
use sqlx::{Postgres, Transaction};

#[distributed_lock(key = "a:{id}", tx = tx)]
fn settle(id: u64, tx: &mut Transaction<'_, Postgres>) -> Result<u64, OrderError> {
    Ok(id)
}

#[distributed_lock(key = "a:{id}")]
#[optimistic_retry]
fn sell(id: u64) -> Result<u64, StockError> {
    Ok(id)
}

fn main() {
    let _ = sell(1);
}
