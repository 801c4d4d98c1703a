//! A name in the body that is not the argument, and is not taken for it.
#![forbid(unreachable_code, unused_must_use)]
#![deny(unused_results, unused_qualifications, tail_expr_drop_order)]

use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

pub struct R(pub Box<u64>);

fn find() -> Option<Box<u64>> {
    None
}

mod order {
    pub(super) async fn settle() {}
}

struct O {
    id: u64,
}

impl O {
    #[allow(non_upper_case_globals)]
    const id: u64 = 7;
}

#[distributed_lock(key = "a:{id}", on_busy = Ok(R(id)))]
pub async fn if_let(id: Box<u64>) -> Result<R, OrderError> {
    if let Some(id) = find() {
        return Ok(R(id));
    }
    Err(OrderError::Unknown(1))
}

#[distributed_lock(key = "a:{id}", on_busy = Ok(R(id)))]
pub async fn bindings(id: Box<u64>) -> Result<R, OrderError> {
    let (id, _) = (find(), 1);
    let Some(id) = id else {
        return Err(OrderError::Unknown(1));
    };
    Ok(R(id))
}

#[distributed_lock(key = "a:{id}", on_busy = Ok(R(id)))]
pub async fn branches(id: Box<u64>) -> Result<R, OrderError> {
    match find() {
        Some(id) if *id > 3 => Ok(R(id)),
        _ => Ok(R(find().map(|id| id).unwrap_or_default())),
    }
}

#[distributed_lock(key = "a:{time}:{order}:{id}", on_busy = Ok(R(id)))]
pub async fn paths(time: u64, order: Box<u64>, id: Box<u64>) -> Result<R, OrderError> {
    tokio::time::sleep(std::time::Duration::ZERO).await;
    order::settle().await;
    let o = O { id: O::id };
    Ok(R(Box::new(o.id)))
}

/// About `{id}`.
#[distributed_lock(key = "a:{id}", on_busy = Ok(R(id)))]
pub async fn literals(id: Box<u64>) -> Result<R, OrderError> {
    /// As `{id}`.
    const ROUTE: &str = "/orders/{id}";
    let line = concat!("{id}", stringify!(id));
    Ok(R(Box::new((ROUTE.len() + line.len()) as u64)))
}

#[distributed_lock(key = "a:{id}", on_busy = Ok(R(id)))]
pub async fn macros(id: Box<u64>) -> Result<R, OrderError> {
    macro_rules! field {
        ($name:ident = $value:expr) => {
            $value
        };
    }
    let small = matches!(find(), Some(id) if *id < 5);
    Ok(R(Box::new(field!(id = u64::from(small)))))
}

#[distributed_lock(key = "a:{id}")]
pub async fn without_a_use(id: u64, list: &mut Vec<u64>) -> Result<(), OrderError> {
    list.push(1);
    list.push(id);
    Ok(())
}

#[distributed_lock(key = "a:{settle}", on_busy = Ok(R(settle)))]
pub async fn imported(settle: Box<u64>) -> Result<R, OrderError> {
    use order::settle;
    settle().await;
    Ok(R(Box::new(1)))
}
