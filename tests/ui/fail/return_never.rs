use dblock::distributed_lock;

#[distributed_lock(key = "worker")]
async fn work() -> ! {
    loop {
        tokio::task::yield_now().await;
    }
}

#[distributed_lock(key = "worker", on_error = |error| panic!("{error}"))]
async fn or_panic() -> ! {
    loop {
        tokio::task::yield_now().await;
    }
}

fn main() {
    let _ = (work, or_panic);
}
