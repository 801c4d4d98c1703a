use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

struct Work;

impl Work {
    #[distributed_lock(key = "order", tx = self)]
    async fn method(&mut self) -> Result<(), OrderError> {
        Ok(())
    }
}

#[distributed_lock(key = "order", tx = self)]
async fn function() -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    let _ = (Work::method, function);
}
