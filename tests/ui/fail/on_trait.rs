use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a")]
trait Settle {
    async fn settle(&self) -> Result<(), OrderError>;
}

fn main() {}
