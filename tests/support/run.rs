//! Running one test on every store.

use std::time::Duration;

use tokio::runtime::Builder;

use crate::backend::{Backend, Kind};

/// No test hangs for longer than this. Far from what one takes, as machines stall.
const LIMIT: Duration = Duration::from_mins(5);

/// Makes one `#[test]` a store of each async function that is named: `name::postgres`, `name::mysql`,
/// `name::sqlite` and `name::memory`. Each gets a [`Backend`] of its own.
///
/// Behind `paused time:` the memory store runs under tokio's paused time, so that leases run out at once.
/// Behind `databases:` the memory store is left out, for what only a database has; `servers:`, `postgres:`,
/// `mysql:`, `sqlite:` and `memory:` are for what only they have.
#[macro_export]
macro_rules! on_every_store {
    (paused time: $($name:ident),+ $(,)?) => {
        $crate::on_every_store!(@tests $($name),+; postgres Postgres, mysql MySql, sqlite Sqlite, memory PausedMemory);
    };
    (databases: $($name:ident),+ $(,)?) => {
        $crate::on_every_store!(@tests $($name),+; postgres Postgres, mysql MySql, sqlite Sqlite);
    };
    (servers: $($name:ident),+ $(,)?) => {
        $crate::on_every_store!(@tests $($name),+; postgres Postgres, mysql MySql);
    };
    (postgres: $($name:ident),+ $(,)?) => {
        $crate::on_every_store!(@tests $($name),+; postgres Postgres);
    };
    (mysql: $($name:ident),+ $(,)?) => {
        $crate::on_every_store!(@tests $($name),+; mysql MySql);
    };
    (sqlite: $($name:ident),+ $(,)?) => {
        $crate::on_every_store!(@tests $($name),+; sqlite Sqlite);
    };
    (memory: $($name:ident),+ $(,)?) => {
        $crate::on_every_store!(@tests $($name),+; memory Memory);
    };
    (@tests $name:ident, $($more:ident),+; $($stores:tt)+) => {
        $crate::on_every_store!(@tests $name; $($stores)+);
        $crate::on_every_store!(@tests $($more),+; $($stores)+);
    };
    (@tests $name:ident; $($store:ident $kind:ident),+) => {
        mod $name {
            $(
                #[test]
                fn $store() {
                    $crate::run::on($crate::Kind::$kind, super::$name);
                }
            )+
        }
    };
    ($($name:ident),+ $(,)?) => {
        $crate::on_every_store!(@tests $($name),+; postgres Postgres, mysql MySql, sqlite Sqlite, memory Memory);
    };
}

/// Runs `test` on a fresh backend; not at all, but loudly, when its server is not given.
///
/// # Panics
/// When the test fails or takes longer than five minutes.
pub fn on(kind: Kind, test: impl AsyncFnOnce(Backend)) {
    let runtime = if kind == Kind::PausedMemory {
        Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
    } else {
        Builder::new_multi_thread().worker_threads(2).enable_all().build()
    };
    runtime.unwrap().block_on(async {
        let Some(backend) = Backend::new(kind).await else {
            return;
        };
        // Paused time runs to the end of the limit as soon as the test waits for nothing.
        tokio::time::timeout(LIMIT, test(backend.clone()))
            .await
            .expect("the test hangs");
        backend.clean_up().await;
    });
}
