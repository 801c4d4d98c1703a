use dblock::run_once;
use dblock_ui_tests::OrderError;
use sqlx::{Postgres, Transaction};

#[run_once(key = "pay", remember = "1h", on_crash = "retry", tx = tx)]
async fn in_transaction(tx: &mut Transaction<'_, Postgres>) -> Result<u64, OrderError> {
    Ok(1)
}

#[run_once(key = "pay", remember = "1h", on_crash = "retry", on_lost = "signal")]
async fn goes_on() -> Result<u64, OrderError> {
    Ok(1)
}

#[run_once(keys = ["pay"], remember = "1h", on_crash = "retry")]
async fn several() -> Result<u64, OrderError> {
    Ok(1)
}

#[run_once(key = "pay", remember = "1h", on_crash = "retry", shared)]
async fn beside_others() -> Result<u64, OrderError> {
    Ok(1)
}

#[run_once(key = "pay", remember = "1h", on_crash = "retry", limit = 8)]
async fn a_few() -> Result<u64, OrderError> {
    Ok(1)
}

fn main() {
    let _ = (in_transaction, goes_on, several, beside_others, a_few);
}
