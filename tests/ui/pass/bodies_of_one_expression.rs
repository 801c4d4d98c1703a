// Code that follows the generated code must not be read as its continuation.
use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a", on_error = |_| -1)]
pub async fn minus(number: i64) -> i64 { -number }

#[distributed_lock(key = "a", on_error = |_| (0, 0))]
pub async fn tuple(number: i64) -> (i64, i64) { (number, 1) }

#[distributed_lock(key = "a", on_error = |_| [0])]
pub async fn array(number: i64) -> [i64; 1] { [number] }

#[distributed_lock(key = "a", on_error = |_| &0)]
pub async fn reference(number: &(i64, i64)) -> &i64 { &number.0 }

#[distributed_lock(key = "a", on_error = |_| 0)]
pub async fn dereference(number: &i64) -> i64 { *number }

#[distributed_lock(key = "a", on_error = |_| ..0)]
pub async fn range(number: i64) -> std::ops::RangeTo<i64> { ..number }

#[distributed_lock(key = "a", on_error = |_| false)]
pub async fn not(flag: bool) -> bool { !flag }

#[distributed_lock(key = "a")]
pub async fn braces() -> Result<(), OrderError> {
    {
        Ok(())
    }
}

#[distributed_lock(key = "a", on_error = |_| ())]
pub async fn empty() {}

#[distributed_lock(key = "a", on_error = |_| ())]
pub async fn one_statement() { drop(String::new()) }
