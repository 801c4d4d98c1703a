use dblock::distributed_lock;

#[distributed_lock(key = "a")]
struct Order;

fn main() {}
