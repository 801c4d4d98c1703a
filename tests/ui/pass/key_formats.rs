use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "{id:08}:{id:>4}:{id:#x}:{name:?}:{name:*<5}:{ratio:.2}:{{literal}}:{ id }:{name::>9}")]
pub async fn settle(id: u64, name: &str, ratio: f64) -> Result<u64, OrderError> {
    let _ = (name, ratio);
    Ok(id)
}
