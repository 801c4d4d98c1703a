use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

struct Postgres;
struct Transaction<'c, DB>(&'c DB);
struct DatabaseTransaction;

#[optimistic_retry]
async fn borrowed(tx: &mut Transaction<'_, Postgres>, id: u64) -> Result<u64, StockError> {
    let _ = tx.0;
    Ok(id)
}

#[optimistic_retry]
async fn given(tx: Transaction<'_, Postgres>, id: u64) -> Result<u64, StockError> {
    let _ = tx.0;
    Ok(id)
}

#[optimistic_retry]
async fn of_sea_orm(tx: &DatabaseTransaction) -> Result<(), StockError> {
    let _ = tx;
    Ok(())
}

fn main() {}
