use dblock::distributed_lock;

#[distributed_lock(key = "a")]
async fn settle<E>(error: E) -> Result<(), E> {
    Err(error)
}

fn main() {}
