use dblock::run_once;

#[run_once(key = "pay", remember = "1h", on_crash = "retry")]
async fn pay(id: u64) -> Result<u64, std::num::ParseIntError> {
    Ok(id)
}

fn main() {
    let _ = pay;
}
