//! A handler of actix-web under a lock. An error of the lock becomes an HTTP status.

use std::error::Error;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{App, HttpResponse, HttpServer, ResponseError, post, web};
use dblock::{LockError, LockManager, distributed_lock};

#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error(transparent)]
    Lock(#[from] LockError),
}

impl ResponseError for ShopError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::Lock(error) if error.is_busy() => StatusCode::CONFLICT,
            Self::Lock(error) if error.is_retryable() || error.is_shutdown() => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Lock(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    // The text of the error names the key and its holder, which is not for clients.
    fn error_response(&self) -> HttpResponse {
        if self.status_code().is_server_error() {
            eprintln!("request failed: {self}");
        }
        HttpResponse::new(self.status_code())
    }
}

/// Two requests for one order do not run beside each other, on whichever nodes they are.
#[post("/orders/{id}/invoice")]
#[distributed_lock(key = "order:{id}", wait = "2s", manager = locks)]
async fn write_invoice(id: web::Path<i64>, locks: web::Data<LockManager>) -> Result<String, ShopError> {
    // … here is the work …
    Ok(format!("the invoice of order {id} is written\n"))
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = LockManager::connect("postgres://app@localhost/app").await?;
    let data = web::Data::new(locks.clone());
    let ended = HttpServer::new(move || App::new().app_data(data.clone()).service(write_invoice))
        .shutdown_timeout(10)
        .bind("127.0.0.1:8080")?
        .run()
        .await;
    locks.shutdown(Duration::from_secs(10)).await;
    Ok(ended?)
}
