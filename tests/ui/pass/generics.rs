use std::fmt::Display;
use std::hash::Hash;

use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "{id}:{N}")]
pub async fn generic<T, const N: usize>(id: T, items: [T; N]) -> Result<usize, OrderError>
where
    T: Display + Hash,
{
    let _ = (&id, &items);
    Ok(N)
}

pub struct Store<K>(pub K);

impl<K: Display + Clone> Store<K> {
    #[distributed_lock(key = "{self.0}")]
    pub async fn get<V: From<K>>(&self) -> Result<V, OrderError>
    where
        K: Send,
    {
        Ok(V::from(self.0.clone()))
    }
}
