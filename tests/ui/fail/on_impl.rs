use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

struct Service;

#[distributed_lock(key = "a")]
impl Service {
    async fn settle(&self) -> Result<(), OrderError> {
        Ok(())
    }
}

fn main() {
    drop(Service.settle());
}
