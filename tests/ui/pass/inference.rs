use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a")]
pub async fn from_the_return_type(text: &str) -> Result<Vec<u64>, OrderError> {
    if text.is_empty() {
        return Ok(Default::default());
    }
    let numbers = text.split(',').map(str::parse).collect::<Result<_, _>>();
    numbers.map_err(|_: std::num::ParseIntError| OrderError::Unknown(0))
}

#[distributed_lock(key = "a")]
pub async fn coerces() -> Result<Box<dyn Fn(u64) -> u64>, OrderError> {
    Ok(Box::new(|n| n + 1))
}

#[distributed_lock(key = "a")]
pub async fn question_mark(value: Result<u8, dblock::LockError>) -> Result<u8, OrderError> {
    let value = value?;
    loop {
        if value > 3 {
            break Ok(value);
        }
        return Err(OrderError::Unknown(1));
    }
}

#[distributed_lock(key = "a")]
pub async fn never_returns() -> Result<std::convert::Infallible, OrderError> {
    std::future::pending().await
}
