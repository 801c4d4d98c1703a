use dblock::run_once;

#[run_once(key = "pay:{id}", remember = "24h", on_crash = "stop", on_error = |_| 0)]
async fn pay(id: u64) -> u64 {
    id
}

fn main() {}
