use dblock::distributed_lock;

struct SettleError;

#[distributed_lock(key = "a", on_busy = Ok(()))]
async fn settle() -> Result<(), SettleError> {
    Ok(())
}

fn main() {}
