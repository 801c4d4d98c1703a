use dblock::distributed_lock;

#[distributed_lock(key = "a")]
const ORDER: u8 = 1;

fn main() {}
