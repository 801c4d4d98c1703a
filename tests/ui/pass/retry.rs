use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dblock::optimistic::StaleVersion;
use dblock::{LockManager, distributed_lock, optimistic_retry};
use dblock_ui_tests::{Order, StockError, send};

pub struct State<T>(pub T);

#[optimistic_retry]
pub async fn smallest() -> Result<(), StaleVersion> {
    Ok(())
}

#[optimistic_retry(times = 5, backoff = "10ms..200ms", within = "2s", crate = dblock)]
pub async fn copies(order: &Order, mut count: u64, (a, b): (u64, &str)) -> Result<u64, StockError> {
    if order.id == 0 {
        return Err(StockError::SoldOut);
    }
    count += a + b.len() as u64;
    Ok(count)
}

#[optimistic_retry(within = within)]
pub async fn borrowed_where_they_are_bound(
    State(ref orders): State<Arc<Vec<Order>>>,
    ref name: String,
    within: Duration,
) -> Result<String, StockError> {
    Ok(format!("{name} {} {within:?}", orders.len()))
}

#[optimistic_retry]
pub async fn generic<'a, T: AsRef<str>, C: Fn(&str) -> Result<(), StockError> + Copy>(
    name: &'a T,
    call: C,
    text: impl Into<&'a str> + Copy,
) -> Result<&'a str, StockError> {
    call(name.as_ref())?;
    call(text.into())?;
    Ok(name.as_ref())
}

#[optimistic_retry]
pub async fn unused(_order: Order) -> Result<impl Iterator<Item = u8>, StockError> {
    if false {
        return Err(StockError::SoldOut);
    }
    Ok([1_u8].into_iter())
}

#[distributed_lock(key = "stock:{id}")]
#[optimistic_retry(times = 3)]
pub async fn under_a_lock(id: u64, name: &str) -> Result<usize, StockError> {
    Ok(name.len() + id as usize)
}

#[optimistic_retry(times = 3)]
#[distributed_lock(key = "stock:{id}:{name}", on_busy = Err(StockError::SoldOut))]
pub async fn around_a_lock(id: u64, name: &str) -> Result<u64, StockError> {
    Ok(id)
}

#[async_trait]
pub trait Sell: Send + Sync {
    async fn sell(&self, order: &Order) -> Result<u64, StockError>;

    #[optimistic_retry]
    async fn by_default(&self, order: &Order, (a, b): (u64, u64)) -> Result<u64, StockError> {
        Ok(self.sell(order).await? + a + b)
    }
}

pub struct Shop {
    pub locks: LockManager,
    left: u64,
}

#[async_trait]
impl Sell for Shop {
    #[distributed_lock(key = "order:{order.id}", manager = self.locks)]
    #[optimistic_retry]
    async fn sell(&self, order: &Order) -> Result<u64, StockError> {
        if order.id == 0 {
            return Err(StockError::SoldOut);
        }
        Ok(order.id + self.left)
    }
}

impl Shop {
    #[optimistic_retry]
    fn by_hand(&self, id: u64) -> impl Future<Output = Result<u64, StockError>> {
        async move { Ok(id + self.left) }
    }
}

/// A struct of the application's that is no database transaction.
#[derive(Clone, Copy)]
pub struct Transaction {
    pub cents: u64,
}

#[optimistic_retry]
pub async fn book(transaction: &Transaction, same: Transaction) -> Result<u64, StockError> {
    Ok(transaction.cents + same.cents)
}

pub fn is_send(shop: &Shop, order: &Order) {
    drop(send(shop.sell(order)));
    drop(send(shop.by_hand(1)));
    drop(send(copies(order, 1, (1, "a"))));
    drop(send(under_a_lock(1, "a")));
    drop(send(around_a_lock(1, "a")));
    drop(send(dblock::optimistic::retry(
        dblock::optimistic::RetryOptions::new(),
        async || Ok::<_, StaleVersion>(order.id),
    )));
}
