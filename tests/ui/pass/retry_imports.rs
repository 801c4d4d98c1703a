pub mod lock_above {
    use dblock::{distributed_lock, optimistic_retry};
    use dblock_ui_tests::StockError;

    #[distributed_lock(key = "stock:{id}")]
    #[optimistic_retry]
    pub async fn sell(id: u64) -> Result<u64, StockError> {
        Ok(id)
    }
}

pub mod retry_above {
    use dblock::distributed_lock;
    use dblock_ui_tests::StockError;

    #[dblock::optimistic_retry]
    #[distributed_lock(key = "stock:{id}")]
    pub async fn sell(id: u64) -> Result<u64, StockError> {
        Ok(id)
    }
}
