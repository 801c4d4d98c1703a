#![forbid(unused, unused_imports, unused_mut, unused_variables)]

use dblock::{distributed_lock, run_once};
use dblock_ui_tests::OrderError;

// One mistake is one error, also where no lint may be allowed.
#[distributed_lock(key = "order:{id}", tll = "5s")]
#[run_once(key = "order:{id}", remember = "1h", on_crash = "stop")]
async fn settle(mut id: u64, (first, _): (u8, u8)) -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    let _ = settle;
}
