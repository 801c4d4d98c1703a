use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

const REGION: &str = "eu";
static SHARD: u8 = 3;

#[distributed_lock(key = "{REGION}:{SHARD}:{id}")]
pub async fn settle(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}
