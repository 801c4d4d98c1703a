use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

macro_rules! service {
    ($name:ident, $key:literal, $argument:ident, $ttl:expr, $body:block) => {
        #[distributed_lock(key = $key, ttl = $ttl)]
        pub async fn $name($argument: u64) -> Result<u64, OrderError> $body
    };
}

service!(from_literals, "order:{id}", id, "30s", { Ok(id) });

macro_rules! hygienic {
    ($name:ident, $ty:ty, $result:ty) => {
        #[distributed_lock(key = "order:{order.id}", on_busy = Ok(()))]
        pub async fn $name(order: $ty) -> $result {
            let _ = order;
            Ok(())
        }
    };
}

hygienic!(from_types, &Order, Result<(), OrderError>);
