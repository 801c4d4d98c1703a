use dblock::{LockManager, distributed_lock};
use dblock_ui_tests::{Order, OrderError, send};

pub struct Bank {
    locks: LockManager,
}

const BANK: &str = "bank";

impl Bank {
    #[distributed_lock(keys = ["account:{from}", "account:{to}"], wait = "5s", manager = self.locks)]
    pub async fn transfer(&self, from: u64, to: u64) -> Result<u64, OrderError> {
        Ok(from + to)
    }

    #[distributed_lock(keys = [BANK, format!("order:{}", order.id), "{order.region}",], on_busy = Ok(0))]
    pub async fn settle(&self, order: Order, name: String) -> Result<u64, OrderError> {
        drop(name);
        Ok(order.id)
    }
}

#[distributed_lock(keys = ["one"])]
#[distributed_lock(keys = ["{name}", "two"])]
async fn stacked(name: String) -> Result<String, OrderError> {
    Ok(name)
}

macro_rules! locked {
    ($($key:literal),*) => {
        #[distributed_lock(keys = [$($key),*])]
        pub async fn from_a_macro(id: u64) -> Result<u64, OrderError> {
            Ok(id)
        }
    };
}

locked!("order:{id}", "all");

#[test]
fn the_futures_are_send() {
    drop(send(stacked("a".into())));
    drop(send(from_a_macro(1)));
}
