use std::sync::Arc;

use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

struct Shop {
    sold: u64,
}

impl Shop {
    #[optimistic_retry]
    async fn by_exclusive_reference(&mut self) -> Result<(), StockError> {
        self.sold += 1;
        Ok(())
    }

    #[optimistic_retry]
    async fn by_arc(self: Arc<Self>) -> Result<u64, StockError> {
        Ok(self.sold)
    }

    #[optimistic_retry]
    async fn by_value(self) -> Result<u64, StockError> {
        Ok(self.sold)
    }
}

fn main() {}
