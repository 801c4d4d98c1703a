//! The store's own few connections.
//!
//! Not sqlx's pool, for three reasons: a refused connection is reported at once instead of being retried
//! until a time-out hides the cause, there is no liveness round trip before a statement, and a connection
//! whose statement was cut off can never come back into use (sqlx issues 4349 and 4385).

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::error::{StoreError, StoreErrorKind};

/// No store opens more connections than this.
pub(crate) const MAX_CONNECTIONS: usize = 4;

/// How long opening a connection may take: less than the engine waits for an acquire, so that a server that
/// swallows packets is known to be unreachable, and nothing was sent.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

type Opening<C> = Pin<Box<dyn Future<Output = Result<C, StoreError>> + Send>>;

/// At most [`MAX_CONNECTIONS`] connections, opened when needed.
pub(crate) struct Connections<C> {
    open: Box<dyn Fn() -> Opening<C> + Send + Sync>,
    idle: Mutex<Vec<C>>,
    permits: Semaphore,
}

impl<C> Connections<C> {
    /// `open` opens one connection and makes its session settings.
    pub(crate) fn new<F>(most: usize, open: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<C, StoreError>> + Send + 'static,
    {
        Self {
            open: Box::new(move || Box::pin(open())),
            idle: Mutex::new(Vec::new()),
            permits: Semaphore::new(most.min(MAX_CONNECTIONS)),
        }
    }

    /// An idle connection, or a new one. The server may have closed an idle one: the caller tries again.
    pub(crate) async fn take(&self) -> Result<Borrowed<'_, C>, StoreError> {
        self.borrow(Option::Some).await
    }

    /// A new connection, for a statement that is not tried again.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
    pub(crate) async fn take_new(&self) -> Result<Borrowed<'_, C>, StoreError> {
        // An idle one makes room, so that there are never more than allowed.
        self.borrow(|_| None).await
    }

    /// Room for one connection that the caller opens and keeps, until the permit is dropped.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub(crate) async fn room(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        let permit = self.permit().await?;
        drop(self.idle().pop());
        Ok(permit)
    }

    async fn permit(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        let closed = |_| StoreError::new(StoreErrorKind::Other, "the lock store is closed");
        self.permits.acquire().await.map_err(closed)
    }

    async fn borrow(&self, choose: impl FnOnce(C) -> Option<C>) -> Result<Borrowed<'_, C>, StoreError> {
        let permit = self.permit().await?;
        let idle = self.idle().pop().and_then(choose);
        let connection = match idle {
            Some(connection) => connection,
            None => tokio::time::timeout(CONNECT_TIMEOUT, (self.open)())
                .await
                .unwrap_or_else(|_| {
                    Err(StoreError::new(
                        StoreErrorKind::Unreachable,
                        format!("the database did not accept a connection within {CONNECT_TIMEOUT:?}"),
                    ))
                })?,
        };
        Ok(Borrowed {
            connection: Some(connection),
            home: self,
            _permit: permit,
        })
    }

    /// Closes the idle connections. Those of a broken server are all broken.
    pub(crate) fn forget_idle(&self) {
        self.idle().clear();
    }

    /// Takes no more work and closes the idle connections.
    pub(crate) fn close(&self) {
        self.permits.close();
        self.forget_idle();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<C>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> fmt::Debug for Connections<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("idle", &self.idle().len())
            .finish_non_exhaustive()
    }
}

/// A connection in use. Dropping it closes it, so that a statement that was cut off, failed or left a
/// transaction open cannot meet another one; [`keep`](Self::keep) makes it idle again.
pub(crate) struct Borrowed<'a, C> {
    connection: Option<C>,
    home: &'a Connections<C>,
    _permit: SemaphorePermit<'a>,
}

impl<C> Borrowed<'_, C> {
    /// Its last statement was answered: it may be used again.
    pub(crate) fn keep(mut self) {
        self.home.idle().extend(self.connection.take());
    }

    /// Keeps the connection when the answer shows that it works; otherwise closes it, and the idle ones
    /// too when the server is gone.
    pub(crate) fn settle<T>(self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        match &answer {
            Ok(_) => self.keep(),
            Err(error) => match error.kind() {
                StoreErrorKind::Interrupted | StoreErrorKind::Unreachable => self.home.forget_idle(),
                _ => {}
            },
        }
        answer
    }
}

impl<C> Deref for Borrowed<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection
            .as_ref()
            .expect("the connection is there until `keep` takes self")
    }
}

impl<C> DerefMut for Borrowed<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.connection
            .as_mut()
            .expect("the connection is there until `keep` takes self")
    }
}
