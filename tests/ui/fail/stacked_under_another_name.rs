use dblock::distributed_lock;
use dblock::distributed_lock as locked;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "outer")]
#[locked(key = "inner")]
async fn settle() -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = "outer")]
#[prelude::distributed_lock(key = "inner")]
async fn exported() -> Result<(), OrderError> {
    Ok(())
}

mod prelude {
    pub use dblock::distributed_lock;
}

fn main() {
    let _ = (settle, exported);
}
