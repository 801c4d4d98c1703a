use std::pin::Pin;

use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

type Work = Pin<Box<dyn Future<Output = Result<(), OrderError>> + Send>>;

#[distributed_lock(key = "nightly", on_error = |error| Box::pin(std::future::ready(Err(error.into()))))]
fn clean_up() -> Work {
    Box::pin(std::future::ready(Ok(())))
}

fn main() {
    let _ = clean_up;
}
