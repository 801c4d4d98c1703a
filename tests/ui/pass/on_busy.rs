use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "nightly", on_busy = Ok(()))]
pub async fn skip() -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = "order:{id}", on_busy = Err(OrderError::Unknown(id)))]
pub async fn uses_an_argument(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

#[distributed_lock(key = "order:{id}", on_busy = return Ok(1))]
pub async fn returns(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

#[distributed_lock(key = "nightly", on_busy = false, on_error = |error| panic!("{error}"))]
pub async fn with_on_error() -> bool {
    true
}

fn find() -> Option<String> {
    None
}

#[distributed_lock(key = "a:{name}", on_busy = { drop(name); Ok(()) })]
pub async fn selected(name: String) -> Result<(), OrderError> {
    tokio::select! {
        Some(name) = async { find() } => drop(name),
        found = async { find() } => {
            if let Some(name) = found {
                drop(name);
            }
        }
        else => {}
    }
    Ok(())
}
