use dblock::distributed_lock;

#[distributed_lock(key = "a")]
async fn settle() -> Option<u64> {
    Some(1)
}

fn main() {}
