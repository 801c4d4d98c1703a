#![deny(unused, deprecated)]
use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a:{in_key}")]
async fn settle(unused: u64, in_key: u64, mut never_mutated: Vec<u8>) -> Result<(), OrderError> {
    let local = 1;
    std::future::ready(1);
    old();
    drop(never_mutated);
    return Ok(());
    drop(in_key);
}

#[deprecated]
fn old() {}

fn main() {}
