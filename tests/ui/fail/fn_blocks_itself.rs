use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "nightly")]
fn clean_up(runtime: &tokio::runtime::Runtime) -> Result<(), OrderError> {
    runtime.block_on(async { Ok(()) })
}

fn main() {
    let _ = clean_up;
}
