use dblock::distributed_lock;

#[distributed_lock(key = "a")]
mod orders {}

fn main() {}
