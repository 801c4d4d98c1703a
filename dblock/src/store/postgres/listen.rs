//! Wake-ups: LISTEN on a connection of its own, which is one of the store's few.
//!
//! A release notifies the table's channel if others wait for the key or if it passes the row on; [`wake_up`]
//! reads the payload. A waiter that misses a notification polls within a second, so nothing here needs to be
//! fast. But a connection that can receive nothing must not be taken for a quiet one:
//! - A pooler in transaction mode accepts LISTEN and leaves it on a session that it lends to others, whose
//!   drivers may fail on a notification (sqlx does). So poolers are detected before anything listens (see
//!   `session.rs`), and a notification on a channel of our own proves that they arrive ([`prove`]).
//! - A statement now and then detects a server that is gone silently. (sqlx cannot set the kernel's keep-alive,
//!   whose default is two hours.)

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgNotification, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use tokio::time::{Instant, timeout};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::session::Mark;
use super::sql::{MAY_ENTER, PASSED_ON, RELEASED};
use super::{PostgresStore, error};
use crate::Key;
use crate::store::WakeUp;
use crate::store::servers::CONNECT_TIMEOUT;
use crate::store::{StoreError, StoreErrorKind};

/// After this long without a notification, a statement checks whether the server is still there.
const QUIET: Duration = Duration::from_secs(30);

/// Time limit of a statement on this connection, and of the first notification.
const TIMEOUT: Duration = Duration::from_secs(3);

pub(super) async fn listen(store: &PostgresStore, tell: &(dyn Fn(WakeUp) + Send + Sync)) -> StoreError {
    let server = match store.connections.server().await {
        Ok(server) => server,
        Err(error) => return error,
    };
    tokio::select! {
        biased;
        () = store.connections.moved_from(server) => StoreError::new(
            StoreErrorKind::Interrupted,
            "the locks are used on another server, where nothing listens yet",
        ),
        Err(error) = until_lost(store, server, tell) => error,
    }
}

async fn until_lost(
    store: &PostgresStore,
    server: usize,
    tell: &(dyn Fn(WakeUp) + Send + Sync),
) -> Result<Infallible, StoreError> {
    refuse_a_pooler(store).await?;
    let _room = store.connections.room().await?;
    let mut listener = connect(store, server).await?;
    let channel = channel(store, &mut listener).await?;
    prove(store, &mut listener).await?;
    with_limit(store, listener.listen(&channel)).await?;
    tell(WakeUp::Listening);
    loop {
        match timeout(QUIET, listener.try_recv()).await {
            Ok(answer) => {
                if let Some(wake_up) = wake_up(notification(store, answer)?.payload()) {
                    tell(wake_up);
                }
            }
            Err(_) if self::channel(store, &mut listener).await? == channel => {}
            Err(_) => {
                return Err(StoreError::new(
                    StoreErrorKind::Conflict,
                    "the lock table was replaced by another one",
                ));
            }
        }
    }
}

/// How long a notification to itself takes, on connections of the store.
///
/// # Errors
/// Why none arrives.
pub(super) async fn heard_after(store: &PostgresStore) -> Result<Duration, StoreError> {
    refuse_a_pooler(store).await?;
    let server = store.connections.server().await?;
    let _room = store.connections.room().await?;
    let mut listener = connect(store, server).await?;
    prove(store, &mut listener).await
}

/// Reads a payload, as [`super::sql`] has them.
///
/// Every user of the database can send notifications. A payload that cannot be read is ignored, and a forged
/// release only makes waiters ask. A forged pass-on would let the successor enter beside the holder, but it
/// must name the successor's lease, which only users who may read the table can know.
fn wake_up(payload: &str) -> Option<WakeUp> {
    let key = |text| Key::new(None, text).ok();
    if let Some(released) = payload.strip_prefix(RELEASED) {
        return key(released).map(WakeUp::Released);
    }
    if let Some(shared) = payload.strip_prefix(MAY_ENTER) {
        let (inside, rest) = shared.split_once(' ')?;
        let (next, shared) = rest.split_once(' ')?;
        let next = if next.is_empty() {
            None
        } else {
            let (lease, waited) = next.split_at_checked(Hyphenated::LENGTH)?;
            let waited = Duration::from_micros(waited.parse().ok()?);
            Some((Uuid::try_parse(lease).ok()?, waited))
        };
        return Some(WakeUp::may_enter(key(shared)?, inside.parse().ok()?, next));
    }
    let (lease, rest) = payload
        .strip_prefix(PASSED_ON)?
        .split_at_checked(Hyphenated::LENGTH)?;
    let (fence_token, passed_on) = rest.split_once(' ')?;
    let lease_id = Uuid::try_parse(lease).ok()?;
    Some(WakeUp::passed_on(
        key(passed_on)?,
        lease_id,
        fence_token.parse().ok()?,
    ))
}

/// Refuses to listen where a pooler shares the store's sessions with others.
async fn refuse_a_pooler(store: &PostgresStore) -> Result<(), StoreError> {
    let session = store.connections.take().await?;
    let is_ours = session.is_ours();
    session.keep();
    if is_ours { Ok(()) } else { Err(behind_a_pooler()) }
}

/// Connects for listening, by a pool of one, because sqlx receives notifications only on a pool's connection.
///
/// The listener's drop sends an UNLISTEN in the background and then closes the connection. If the server is gone
/// silently, the kernel gives up after some minutes.
async fn connect(store: &PostgresStore, server: usize) -> Result<PgListener, StoreError> {
    let mark = Mark::new();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(mark.on(store.options(server).await?));
    let mut listener = PgListener::connect_with(&pool).await.map_err(error::of_connect)?;
    // The engine handles a lost connection: all waiters ask again.
    listener.eager_reconnect(false);
    let row = with_limit(store, listener.fetch_one(Mark::READ)).await?;
    let is_ours = mark.is_in(&row);
    if is_ours.map_err(|error| store.failed(error))? {
        Ok(listener)
    } else {
        Err(behind_a_pooler())
    }
}

/// The name of the table's channel. It changes when the table is replaced.
async fn channel(store: &PostgresStore, listener: &mut PgListener) -> Result<String, StoreError> {
    let text = AssertSqlSafe(Arc::clone(&store.sql.channel));
    let row = with_limit(store, listener.fetch_one(text)).await?;
    row.try_get(0).map_err(|error| store.failed(error))
}

/// Waits for a notification that another connection sends, as proof that notifications arrive. Returns how
/// long it took.
async fn prove(store: &PostgresStore, listener: &mut PgListener) -> Result<Duration, StoreError> {
    let channel = format!("dblock_{}", Uuid::now_v7().simple());
    with_limit(store, listener.listen(&channel)).await?;
    let mut other = store.connections.take().await?;
    let since = Instant::now();
    let sent = other
        .execute(AssertSqlSafe(format!("NOTIFY \"{channel}\"")))
        .await
        .map_err(|error| store.failed(error));
    other.finish(sent)?;
    match timeout(TIMEOUT, listener.try_recv()).await {
        Ok(answer) => drop(notification(store, answer)?),
        Err(_) => return Err(behind_a_pooler()),
    }
    let took = since.elapsed();
    with_limit(store, listener.unlisten(&channel)).await?;
    Ok(took)
}

fn behind_a_pooler() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unsupported,
        "the database cannot be listened to, as behind a pooler in transaction mode; waiters poll instead",
    )
}

fn notification(
    store: &PostgresStore,
    answer: Result<Option<PgNotification>, sqlx::Error>,
) -> Result<PgNotification, StoreError> {
    answer.map_err(|error| store.failed(error))?.ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Interrupted,
            "the connection that listens for releases was closed",
        )
    })
}

async fn with_limit<T>(
    store: &PostgresStore,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    match timeout(TIMEOUT, statement).await {
        Ok(answer) => answer.map_err(|error| store.failed(error)),
        Err(_) => Err(StoreError::new(
            StoreErrorKind::Interrupted,
            format!("the server did not answer the connection that listens for releases within {TIMEOUT:?}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_or_ignored() {
        let (key, lease_id) = (Key::new(None, "lé k").unwrap(), Uuid::now_v7());
        assert_eq!(wake_up("rlé k"), Some(WakeUp::Released(key.clone())));
        let next = (lease_id, Duration::from_micros(7));
        for (next, text) in [(None, String::new()), (Some(next), format!("{lease_id}7"))] {
            let may_enter = WakeUp::may_enter(key.clone(), u32::MAX, next);
            assert_eq!(wake_up(&format!("s{} {text} lé k", u32::MAX)), Some(may_enter));
        }
        let passed_on = WakeUp::passed_on(key, lease_id, i64::MAX);
        assert_eq!(wake_up(&format!("p{lease_id}{} lé k", i64::MAX)), Some(passed_on));
        let nobody = "p0123456789-0123456789-0123456789-01231 k";
        for other in [
            "",
            "r",
            "p",
            "k",
            "pk",
            "s",
            "s1 k",
            "s1 x k",
            &format!("s1 {lease_id} k"),
            "s4294967296  k",
            nobody,
            &format!("p{lease_id}"),
            &format!("p{lease_id}1 "),
            &format!("p{lease_id}k"),
            &format!("p{lease_id} k"),
            &format!("p{lease_id}9223372036854775808 k"),
            &"é".repeat(40),
            &format!("p{}", "é".repeat(40)),
        ] {
            assert_eq!(wake_up(other), None, "{other}");
        }
    }
}
