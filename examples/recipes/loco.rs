//! Locks in an app of Loco: an initializer makes the manager on the app's pool, and a controller's action runs under
//! the attribute.

use std::time::Duration;

use axum::http::StatusCode;
use dblock::{LockError, LockManager, distributed_lock};
use loco_rs::controller::ErrorDetail;
use loco_rs::prelude::{
    AppContext, Error, Initializer, Path, Response, Result, Routes, SharedStore, async_trait, format, post,
};

/// `Hooks::initializers` of the app returns it: `Ok(vec![Box::new(Locks)])`.
pub struct Locks;

#[async_trait]
impl Initializer for Locks {
    fn name(&self) -> String {
        "locks".to_owned()
    }

    async fn before_run(&self, app: &AppContext) -> Result<()> {
        let pool = app.db.get_postgres_connection_pool();
        let locks = LockManager::builder(pool).auto_migrate(true).build().await;
        app.shared_store.insert(locks.map_err(Error::wrap)?);
        Ok(())
    }
}

/// `Hooks::on_shutdown` of the app calls it. Loco takes new requests until that hook returns, so it waits for nothing here.
pub fn release_all(app: &AppContext) {
    if let Some(locks) = app.shared_store.get::<LockManager>() {
        tokio::spawn(async move { locks.shutdown(Duration::from_secs(10)).await });
    }
}

#[distributed_lock(key = "order:{id}", wait = "2s", manager = locks, on_error = |error| Err(status(&error)))]
async fn write_invoice(
    Path(id): Path<i64>,
    SharedStore(locks): SharedStore<LockManager>,
) -> Result<Response> {
    // … here is the work …
    format::text(&format!("the invoice of order {id} is written\n"))
}

fn status(error: &LockError) -> Error {
    let (status, reason) = match error {
        error if error.is_busy() => (StatusCode::CONFLICT, "another request works on this order"),
        error if error.is_retryable() || error.is_shutdown() => {
            (StatusCode::SERVICE_UNAVAILABLE, "try again later")
        }
        _ => {
            eprintln!("request failed: {error}");
            (StatusCode::INTERNAL_SERVER_ERROR, "internal error")
        }
    };
    Error::CustomError(status, ErrorDetail::with_reason(reason))
}

/// `Hooks::routes` of the app adds them.
pub fn routes() -> Routes {
    Routes::new().add("/orders/{id}/invoice", post(write_invoice))
}
