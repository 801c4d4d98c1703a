use dblock::optimistic_retry;

#[optimistic_retry]
async fn sell(id: u64) -> Option<u64> {
    Some(id)
}

fn main() {
    drop(sell(1));
}
