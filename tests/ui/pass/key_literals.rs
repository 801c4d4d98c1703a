use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "nightly")]
pub async fn fixed() -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = r#"say "{id}" \ "#)]
pub async fn raw_string(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

#[distributed_lock(key = "a\u{301}\x41\"{id}                          :more")]
pub async fn escapes(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}
