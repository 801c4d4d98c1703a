use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a")]
async fn parse(text: &str) -> Result<u64, OrderError> {
    let number = text.parse::<u64>()?;
    Ok(number)
}

fn main() {}
