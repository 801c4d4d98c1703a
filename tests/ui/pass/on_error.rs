use dblock::{LockError, distributed_lock};

fn ignored(_: LockError) {}

#[distributed_lock(key = "nightly", on_error = ignored)]
pub async fn path_to_a_function() {}

#[distributed_lock(key = "nightly", on_error = |error| u16::from(error.is_busy()))]
pub async fn argument_type_is_known() -> u16 {
    200
}

#[distributed_lock(key = "nightly", on_error = |error| Err(error.to_string()))]
pub async fn another_error(names: Vec<String>) -> Result<usize, String> {
    Ok(names.len())
}

#[distributed_lock(key = "nightly", on_error = |error| { drop(error); None })]
pub async fn option() -> Option<u8> {
    Some(1)
}
