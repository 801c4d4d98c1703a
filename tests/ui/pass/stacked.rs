use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "from:{from}", wait = "1s")]
#[distributed_lock(key = "to:{to}", wait = "2s", on_busy = Err(OrderError::Unknown(to)))]
/// The documentation may stand in between.
#[dblock::distributed_lock(key = format!("{note}"))]
pub async fn transfer(from: u64, to: u64, note: String) -> Result<String, OrderError> {
    let _ = (from, to);
    Ok(note)
}
