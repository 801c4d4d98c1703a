//! The store's own few connections.
//!
//! Not sqlx's pool, for three reasons. A refused connection is reported at once; the pool retries until a
//! timeout hides the cause. A connection in use needs no liveness round trip before a statement. A connection
//! whose statement was interrupted can never come back into use (sqlx issues 4349 and 4385).
//!
//! Firewalls drop idle connections silently, and a statement on such a connection is never answered. So a
//! connection that was idle for long is pinged first. If it is dead, all idle connections are closed, so that a
//! caller waits for only one dead connection.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dblock_core::store::events::{self, Event};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::servers::{Age, Alive, CONNECT_TIMEOUT, Connected, Opening, Servers};
use super::{StoreError, StoreErrorKind};

/// The most connections of a store, for all purposes together.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const MAX_CONNECTIONS: usize = 4;

/// A connection that was unused for this long is pinged first. Firewalls wait for longer.
const IDLE: Duration = Duration::from_secs(10);

/// Time limit of the ping. An extend must then have time for a new connection, even with the shortest ttl.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// A connection that nobody uses.
struct Idle<C> {
    since: Instant,
    connected: Connected<C>,
}

/// A store's connections, opened when needed. Each use takes a permit.
pub(crate) struct Connections<C> {
    open: Box<dyn Fn(usize) -> Opening<C> + Send + Sync>,
    place: Box<dyn Fn() -> Option<String> + Send + Sync>,
    servers: Servers,
    /// The name of the store, for metrics.
    store: &'static str,
    /// A connection has ended, and none was opened since.
    has_ended: AtomicBool,
    idle: Mutex<Vec<Idle<C>>>,
    shared: Semaphore,
    /// Permits for extends only.
    reserved: Semaphore,
}

impl<C> Connections<C> {
    /// `open` opens a connection to a server, by its index in `names`, and makes the session settings. At most
    /// `shared` connections are for any use, and `reserved` more for [`take_reserved`](Self::take_reserved).
    /// `place` says where the database is, as [`Store::location`](super::Store::location).
    pub(crate) fn new<F>(
        store: &'static str,
        shared: usize,
        reserved: usize,
        names: Vec<Arc<str>>,
        place: impl Fn() -> Option<String> + Send + Sync + 'static,
        open: impl Fn(usize) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<C, StoreError>> + Send + 'static,
    {
        Self {
            open: Box::new(move |server| Box::pin(open(server))),
            place: Box::new(place),
            servers: Servers::new(store, names),
            store,
            has_ended: AtomicBool::new(false),
            idle: Mutex::new(Vec::new()),
            shared: Semaphore::new(shared),
            reserved: Semaphore::new(reserved),
        }
    }

    /// An idle connection, or a new one. The server may have closed an idle one, so the caller must try
    /// again.
    pub(crate) async fn take(&self) -> Result<Borrowed<'_, C>, StoreError>
    where
        C: Alive,
    {
        self.take_with(permit(&self.shared).await?).await
    }

    /// As [`take`](Self::take), for an extend: never waits for other work, in which the lease might end.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
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
        if let Some(mut idle) = self.pop() {
            let trusted = idle.since.elapsed() < IDLE && !idle.connected.connection.is_due();
            let alive = trusted
                || timeout(SIGN_OF_LIFE, idle.connected.connection.is_alive())
                    .await
                    .unwrap_or(false);
            if alive {
                return Ok(self.lend(idle.connected, permit));
            }
            self.forget_idle();
        }
        Ok(self.lend(self.opened().await?, permit))
    }

    /// A new connection, for a statement that must not be tried again.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
    pub(crate) async fn take_new(&self) -> Result<Borrowed<'_, C>, StoreError>
    where
        C: Alive,
    {
        let permit = permit(&self.shared).await?;
        // Closes an idle connection, so that there are never too many.
        drop(self.idle().pop());
        Ok(self.lend(self.opened().await?, permit))
    }

    /// A permit for one connection that the caller opens and keeps itself, until it drops the permit.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
    pub(crate) async fn room(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        let permit = permit(&self.shared).await?;
        drop(self.idle().pop());
        Ok(permit)
    }

    /// The server in use, for a connection that the caller opens itself.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
    pub(crate) async fn server(&self) -> Result<usize, StoreError>
    where
        C: Alive,
    {
        if self.servers.are_several() {
            self.take().await?.keep();
        }
        Ok(self.servers.chosen())
    }

    /// Waits until another server than `server` is in use.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub(crate) async fn moved_from(&self, server: usize) {
        self.servers.moved_from(server).await;
    }

    /// An idle connection to the server in use. Closes those to a former one.
    fn pop(&self) -> Option<Idle<C>> {
        let mut idle = self.idle();
        let chosen = self.servers.chosen();
        idle.retain(|Idle { connected, .. }| connected.server == chosen && !connected.age.is_outdated());
        idle.pop()
    }

    /// A new connection.
    async fn opened(&self) -> Result<Connected<C>, StoreError>
    where
        C: Alive,
    {
        let opened = timeout(CONNECT_TIMEOUT, self.servers.open(&self.open)).await;
        if matches!(opened, Ok(Ok(_))) && self.has_ended.swap(false, Ordering::Relaxed) {
            tracing::info!(place = (self.place)(), "the lock store is connected again");
            events::note(self.store, Event::Reconnected);
        }
        opened.unwrap_or_else(|_| {
                let at = (self.place)().map_or_else(String::new, |place| format!(" at {place}"));
                let message = format!(
                    "the database{at} did not accept a connection within {CONNECT_TIMEOUT:?}; is the server running, and is \
                     the address right?"
                );
                Err(StoreError::new(StoreErrorKind::Unreachable, message))
            })
    }

    fn lend<'a>(&'a self, connected: Connected<C>, permit: SemaphorePermit<'a>) -> Borrowed<'a, C> {
        Borrowed {
            connected: Some(connected),
            answered: false,
            home: self,
            _permit: permit,
        }
    }

    /// Closes the idle connections. If the server is gone, all of them are broken, and another server may take
    /// writes now.
    pub(crate) fn forget_idle(&self) {
        self.servers.doubt();
        self.has_ended.store(true, Ordering::Relaxed);
        self.idle().clear();
    }

    /// Takes no more work. Returns the idle connections: dropping one closes it, at some time.
    pub(crate) fn close(&self) -> impl Iterator<Item = C> + use<C> {
        self.shared.close();
        self.reserved.close();
        let idle = std::mem::take(&mut *self.idle());
        idle.into_iter().map(|idle| idle.connected.connection)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle<C>>> {
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

/// A connection in use. Its drop closes it, so that a statement that failed, was interrupted or left a
/// transaction open cannot affect another one. [`keep`](Self::keep) makes it idle again.
pub(crate) struct Borrowed<'a, C> {
    connected: Option<Connected<C>>,
    /// The server has answered on this connection. Otherwise this one and the idle ones may be dead.
    answered: bool,
    home: &'a Connections<C>,
    _permit: SemaphorePermit<'a>,
}

impl<C> Borrowed<'_, C> {
    /// Makes the connection idle again. Its last statement must have been answered.
    pub(crate) fn keep(mut self) {
        let idle = self.connected.take().map(|connected| Idle {
            since: Instant::now(),
            connected,
        });
        self.home.idle().extend(idle);
    }

    /// Whether the server is an old primary by now, whose answers do not count.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub(crate) fn is_outdated(&self) -> bool {
        let age = self.connected.as_ref().map(|connected| &connected.age);
        age.is_some_and(Age::is_outdated)
    }

    /// Keeps the connection if the answer shows that it works. Otherwise closes it, and the idle ones too if the
    /// server is gone.
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
        if self.connected.is_some() && !self.answered {
            self.home.forget_idle();
        }
    }
}

impl<C> Deref for Borrowed<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        let connected = self.connected.as_ref();
        &connected
            .expect("the connection is there until `keep` takes self")
            .connection
    }
}

impl<C> DerefMut for Borrowed<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        let connected = self.connected.as_mut();
        &mut connected
            .expect("the connection is there until `keep` takes self")
            .connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Alive for Nothing {
        async fn is_alive(&mut self) -> bool {
            true
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_says_nothing_is_named() {
        let never = |_| std::future::pending::<Result<Nothing, StoreError>>();
        for (place, said) in [
            (Some("db:5432/app"), "the database at db:5432/app did not accept"),
            (None, "the database did not accept"),
        ] {
            let place = move || place.map(str::to_owned);
            let connections = Connections::new("none", 1, 0, vec![Arc::default()], place, never);
            let error = connections.take().await.err().unwrap();
            assert_eq!(error.kind(), StoreErrorKind::Unreachable);
            assert!(error.to_string().starts_with(said), "{error}");
        }
    }
}
