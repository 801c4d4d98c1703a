//! The operators' calls. Unlike a batch, they may wait a short time for a row.

use std::time::Duration;

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::sleep;
use uuid::Uuid;

use super::sql::Shared;
use super::{MySqlStore, error, row, sql};
use crate::Key;
use crate::store::clock::Timestamp;
use crate::store::sql_row::in_order;
use crate::store::{InspectFilter, LockRow, OpenTransaction, StoreError, StoreErrorKind};

pub(super) async fn inspect(store: &MySqlStore, filter: &InspectFilter) -> Result<Vec<LockRow>, StoreError> {
    let text = sql::inspect(&store.table_sql, filter);
    let rows = answer(store, text).await?;
    let rows: Result<_, sqlx::Error> = rows
        .iter()
        .map(|row| row::with_clock(row, Shared::IfThere))
        .collect();
    rows.map_err(|error| store.failed(error))
}

/// Not an operator's call, so it may use an idle connection.
pub(super) async fn rows(store: &MySqlStore, keys: &[Key]) -> Vec<Result<Option<LockRow>, StoreError>> {
    let found = async {
        // Read first: while the connection is taken, another one may be opened to another server.
        let sessions = store.met.identity.sessions();
        let mut connection = store.connections.take().await?;
        let read = sql::read_rows(&store.table_sql, keys.iter(), Shared::IfThere);
        let rows = row::fetch(&mut connection, read, Shared::IfThere).await;
        let session = connection.name().map(str::to_owned);
        let rows = connection.finish(rows.map_err(|error| store.failed(error)))?;
        if let Some(session) = session {
            store.met.identity.was_read(session, sessions);
        }
        Ok(rows)
    };
    let keyed = |row: LockRow| (row.key.clone(), Ok(row));
    in_order(
        keys,
        found.await.map(|(rows, _)| rows.into_iter().map(keyed).collect()),
    )
}

/// How long to wait before the lock of a row that reads as free is tried again. A statement of ours has it for a
/// moment; so 20 ms must pass, after which a non-blocking caller is told that the key is busy.
const PAUSES: [u64; 4] = [2, 4, 8, 8];

/// The row of a key, and whether a transaction has it locked. What a transaction has written cannot be seen, but
/// its lock can be tried. A row with a live lease is left alone: its own requests must find it unlocked.
pub(super) async fn shown(store: &MySqlStore, key: &Key) -> Result<Option<LockRow>, StoreError> {
    let mut pauses = PAUSES.map(Duration::from_millis).into_iter();
    loop {
        let read = sql::look(&store.table_sql, std::iter::once(key), Shared::IfThere);
        let read = answer(store, read)
            .await?
            .first()
            .map(|row| row::with_clock(row, Shared::IfThere))
            .transpose();
        let Some(mut row) = read.map_err(|error| store.failed(error))? else {
            return Ok(None);
        };
        if row.has_lease() || !is_skipped(store, key).await? {
            return Ok(Some(row));
        }
        let Some(pause) = pauses.next() else {
            row.transaction = Some(OpenTransaction::default());
            return Ok(Some(row));
        };
        sleep(pause).await;
    }
}

/// Whether somebody has the row locked, or it is gone. A user that may not lock rows is told no.
async fn is_skipped(store: &MySqlStore, key: &Key) -> Result<bool, StoreError> {
    match answer(store, sql::probe(&store.table_sql, key)).await {
        Ok(found) => Ok(found.is_empty()),
        Err(error) if error.kind() == StoreErrorKind::Refused => Ok(false),
        Err(error) => Err(error),
    }
}

/// Executes one statement on a connection of the store.
async fn answer(store: &MySqlStore, text: String) -> Result<Vec<MySqlRow>, StoreError> {
    let mut connection = store.connections.take_new().await?;
    let rows = sqlx::raw_sql(AssertSqlSafe(text))
        .fetch_all(&mut **connection)
        .await;
    connection.finish(rows.map_err(|error| store.failed(error)))
}

/// What is said to an operator when an open transaction has the row locked for a second.
async fn kept(store: &MySqlStore, key: &Key) -> Result<(), StoreError> {
    let Some(mut row) = shown(store, key).await? else {
        return Ok(());
    };
    let mut transaction = match row.transaction.take() {
        Some(transaction) => transaction,
        // It has a lease, and its lock was not tried.
        None if row.has_lease() && is_skipped(store, key).await? => OpenTransaction::default(),
        None => return Ok(()),
    };
    // Without the right PROCESS there is an error. It is that one only if there is no other.
    if let Ok([only]) = answer(store, sql::LOCKING.to_owned()).await.as_deref() {
        let read = || Ok::<_, sqlx::Error>((only.try_get::<u64, _>(0)?, only.try_get(1)?));
        let (session, since) = read().map_err(|error| store.failed(error))?;
        transaction.session = (session > 0).then_some(session);
        transaction.since = Some(Timestamp::from_micros(since));
    }
    let remedy = match transaction.session {
        Some(session) => format!("end that session by KILL {session}"),
        None => "find its session in information_schema.innodb_trx, as trx_mysql_thread_id, and end it by KILL; \
                 session 0 stands for a prepared transaction: end it by XA ROLLBACK, with its name from XA RECOVER"
            .to_owned(),
    };
    let message = transaction.keeps(row.now, &remedy);
    Err(StoreError::new(StoreErrorKind::Conflict, message))
}

pub(super) async fn revoke(store: &MySqlStore, key: &Key) -> Result<bool, StoreError> {
    // If the row was locked, the clock is up to a second old. A lease that expired meanwhile may then be marked,
    // which changes nothing: it is never extended or revived.
    change_held(store, key, "revoked = TRUE").await
}

pub(super) async fn force_release(store: &MySqlStore, key: &Key) -> Result<bool, StoreError> {
    let lease = sql::hex(Uuid::now_v7().as_bytes());
    let free = format!("reentrant_count = 0, lease_id = {lease}, {}", sql::NO_SUCCESSOR);
    change_held(store, key, &free).await
}

/// Applies `assignments` to the row of a held key. Returns whether it was held.
async fn change_held(store: &MySqlStore, key: &Key, assignments: &str) -> Result<bool, StoreError> {
    let text = format!(
        "UPDATE {} SET {assignments} WHERE lock_key = {} AND reentrant_count > 0 AND expire_at > {}",
        store.table_sql,
        sql::hex(key.as_str().as_bytes()),
        sql::CLOCK,
    );
    let mut connection = store.connections.take_new().await?;
    let done = sqlx::raw_sql(AssertSqlSafe(text))
        .execute(&mut **connection)
        .await;
    let locked = done
        .as_ref()
        .is_err_and(|error| error::number(error) == Some(error::LOCK_WAIT_TIMEOUT));
    let done = connection.finish(done.map_err(|error| store.failed(error)));
    if locked {
        kept(store, key).await?;
    }
    // sqlx counts the rows that matched, not those that changed.
    Ok(done?.rows_affected() > 0)
}
