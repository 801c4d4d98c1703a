use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

pub struct Path<T>(pub T);

#[distributed_lock(key = "order:{id}")]
pub async fn tuple_struct(Path(id): Path<u64>) -> Result<u64, OrderError> {
    Ok(id)
}

#[distributed_lock(key = "order:{id}:{name}:{last}")]
pub async fn nested((Path(id), name): (Path<u64>, &str), [.., last]: [u8; 3]) -> Result<usize, OrderError> {
    Ok(name.len() + usize::from(last) + usize::try_from(id).unwrap_or(0))
}

#[distributed_lock(key = "order:{id}:{place}")]
pub async fn fields(Order { id, region: place }: Order) -> Result<String, OrderError> {
    Ok(format!("{id}{place}"))
}

#[distributed_lock(key = "order:{whole.id}")]
pub async fn bound_whole(mut whole @ Order { .. }: Order) -> Result<u64, OrderError> {
    whole.id += 1;
    Ok(whole.id)
}

#[distributed_lock(key = "order:{id}")]
#[allow(clippy::toplevel_ref_arg)]
pub async fn by_reference(&id: &u64, ref name: String, _: u8) -> Result<usize, OrderError> {
    let _ = id;
    Ok(name.len())
}
