use dblock::distributed_lock;

struct SettleError;

#[async_trait::async_trait]
trait Settle {
    #[distributed_lock(key = "a")]
    async fn settle(&self) -> Result<(), SettleError> {
        Ok(())
    }
}

fn main() {}
