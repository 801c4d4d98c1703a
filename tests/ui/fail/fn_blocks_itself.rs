use dblock::run_once;
use dblock_ui_tests::OrderError;

#[run_once(key = "nightly", remember = "1d", on_crash = "retry")]
fn clean_up(runtime: &tokio::runtime::Runtime) -> Result<(), OrderError> {
    runtime.block_on(async { Ok(()) })
}

fn main() {
    let _ = clean_up;
}
