use std::collections::HashMap;

use dblock::distributed_lock;

struct SettleError;

#[distributed_lock(key = "a")]
async fn settle() -> Result<HashMap<u8, u64>, SettleError> {
    Ok(HashMap::new())
}

fn main() {}
