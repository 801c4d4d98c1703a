//! The store's own few connections.
//!
//! Not sqlx's pool, for three reasons: a refused connection is reported at once instead of being retried
//! until a time-out hides the cause, there is no liveness round trip before a statement on a connection in use, and
//! one whose statement was cut off can never come back into use (sqlx issues 4349 and 4385).
//!
//! Firewalls drop idle connections without a word: what is sent then is answered by nobody. One that was idle for
//! long is asked for a sign of life first, and where one is dead all idle ones are taken to be. So a caller waits for
//! the dead once, not once for each.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::error::{StoreError, StoreErrorKind};

/// No store opens more connections than this, whatever for.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const MAX_CONNECTIONS: usize = 4;

/// How long opening a connection may take: less than the engine waits for an acquire, so that a server that
/// swallows packets is known to be unreachable, and nothing was sent.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// After so long without use a connection is asked for a sign of life. Firewalls wait for longer.
const IDLE: Duration = Duration::from_secs(10);

/// How long that may take: what is left of a lease's shortest time for an extend must be enough for a new connection.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// A connection that can be asked whether its server is still there.
pub(crate) trait Alive: Send {
    fn is_alive(&mut self) -> impl Future<Output = bool> + Send;
}

impl<C: sqlx::Connection> Alive for C {
    async fn is_alive(&mut self) -> bool {
        self.ping().await.is_ok()
    }
}

type Opening<C> = Pin<Box<dyn Future<Output = Result<C, StoreError>> + Send>>;

/// A store's connections, opened when needed. Who has a permit may have one.
pub(crate) struct Connections<C> {
    open: Box<dyn Fn() -> Opening<C> + Send + Sync>,
    /// Each with the time of its last use.
    idle: Mutex<Vec<(Instant, C)>>,
    shared: Semaphore,
    /// For extends alone.
    reserved: Semaphore,
}

impl<C> Connections<C> {
    /// `open` opens one connection and makes its session settings. There are at most `shared` ones for any use, and
    /// `reserved` ones more for [`take_reserved`](Self::take_reserved).
    pub(crate) fn new<F>(shared: usize, reserved: usize, open: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<C, StoreError>> + Send + 'static,
    {
        Self {
            open: Box::new(move || Box::pin(open())),
            idle: Mutex::new(Vec::new()),
            shared: Semaphore::new(shared),
            reserved: Semaphore::new(reserved),
        }
    }

    /// An idle connection, or a new one. The server may have closed an idle one: the caller tries again.
    pub(crate) async fn take(&self) -> Result<Borrowed<'_, C>, StoreError>
    where
        C: Alive,
    {
        self.take_with(permit(&self.shared).await?).await
    }

    /// The same for an extend: it never waits until other work is done. The lease might end meanwhile.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub(crate) async fn take_reserved(&self) -> Result<Borrowed<'_, C>, StoreError>
    where
        C: Alive,
    {
        self.take_with(permit(&self.reserved).await?).await
    }

    async fn take_with<'a>(&'a self, permit: SemaphorePermit<'a>) -> Result<Borrowed<'a, C>, StoreError>
    where
        C: Alive,
    {
        let idle = self.idle().pop();
        if let Some((since, mut connection)) = idle {
            let alive = since.elapsed() < IDLE
                || timeout(SIGN_OF_LIFE, connection.is_alive())
                    .await
                    .unwrap_or(false);
            if alive {
                return Ok(self.lend(connection, permit));
            }
            self.forget_idle();
        }
        Ok(self.lend(self.opened().await?, permit))
    }

    /// A new connection, for a statement that is not tried again.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
    pub(crate) async fn take_new(&self) -> Result<Borrowed<'_, C>, StoreError> {
        let permit = permit(&self.shared).await?;
        // An idle one makes room, so that there are never more than allowed.
        drop(self.idle().pop());
        Ok(self.lend(self.opened().await?, permit))
    }

    /// Room for one connection that the caller opens and keeps, until the permit is dropped.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
    pub(crate) async fn room(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        let permit = permit(&self.shared).await?;
        drop(self.idle().pop());
        Ok(permit)
    }

    async fn opened(&self) -> Result<C, StoreError> {
        timeout(CONNECT_TIMEOUT, (self.open)()).await.unwrap_or_else(|_| {
            Err(StoreError::new(
                StoreErrorKind::Unreachable,
                format!("the database did not accept a connection within {CONNECT_TIMEOUT:?}"),
            ))
        })
    }

    fn lend<'a>(&'a self, connection: C, permit: SemaphorePermit<'a>) -> Borrowed<'a, C> {
        Borrowed {
            connection: Some(connection),
            answered: false,
            home: self,
            _permit: permit,
        }
    }

    /// Closes the idle connections. Those of a broken server are all broken.
    pub(crate) fn forget_idle(&self) {
        self.idle().clear();
    }

    /// Takes no more work and closes the idle connections.
    pub(crate) fn close(&self) {
        self.shared.close();
        self.reserved.close();
        self.forget_idle();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Instant, C)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn permit(permits: &Semaphore) -> Result<SemaphorePermit<'_>, StoreError> {
    let closed = |_| StoreError::new(StoreErrorKind::Other, "the lock store is closed");
    permits.acquire().await.map_err(closed)
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
    /// Something came back on it. What was cut off while it waited for an answer may be dead, and the idle ones too.
    answered: bool,
    home: &'a Connections<C>,
    _permit: SemaphorePermit<'a>,
}

impl<C> Borrowed<'_, C> {
    /// Its last statement was answered: it may be used again.
    pub(crate) fn keep(mut self) {
        let connection = self.connection.take();
        self.home
            .idle()
            .extend(connection.map(|connection| (Instant::now(), connection)));
    }

    /// Keeps the connection when the answer shows that it works; otherwise closes it, and the idle ones
    /// too when the server is gone.
    pub(crate) fn finish<T>(mut self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        match &answer {
            Ok(_) => self.keep(),
            Err(error) => match error.kind() {
                StoreErrorKind::Interrupted | StoreErrorKind::Unreachable => {}
                _ => self.answered = true,
            },
        }
        answer
    }
}

impl<C> Drop for Borrowed<'_, C> {
    fn drop(&mut self) {
        if self.connection.is_some() && !self.answered {
            self.home.forget_idle();
        }
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
