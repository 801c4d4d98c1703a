use dblock::optimistic_retry;

#[optimistic_retry]
async fn sell(id: u64) {
    let _ = id;
}

fn main() {
    drop(sell(1));
}
