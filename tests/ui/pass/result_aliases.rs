use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

pub type Result<T, E = OrderError> = std::result::Result<T, E>;
type Done = Result<()>;

#[distributed_lock(key = "{id}")]
pub async fn aliased(id: u64) -> Result<u64> {
    Ok(id)
}

#[distributed_lock(key = "{id}")]
pub async fn without_parameters(id: u64) -> Done {
    let _ = id;
    Ok(())
}

#[distributed_lock(key = "{id}")]
pub async fn other_error(id: u64) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    Ok(id.to_string().parse()?)
}
