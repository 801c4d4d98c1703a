use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a")]
extern "C" fn settle() -> Result<(), OrderError> {
    Ok(())
}

fn main() {}
