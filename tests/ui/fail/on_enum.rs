use dblock::distributed_lock;

#[distributed_lock(key = "a")]
enum Order {}

fn main() {}
