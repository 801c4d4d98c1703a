use locks::{LockError, distributed_lock};

pub struct Transaction;

#[distributed_lock(key = "report:{id}", tx = tx, crate = locks)]
async fn in_transaction(tx: &mut Transaction, id: u64) -> Result<u64, LockError> {
    Ok(id)
}

fn main() {}
