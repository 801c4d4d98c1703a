use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

trait Settle {
    #[distributed_lock(key = "a:{id}")]
    async fn settle(&self, id: u64) -> Result<(), OrderError>;
}

struct Service;

impl Settle for Service {
    async fn settle(&self, id: u64) -> Result<(), OrderError> {
        Err(OrderError::Unknown(id))
    }
}

fn main() {}
