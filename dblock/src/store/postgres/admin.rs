//! The operators' calls. Unlike a batch, they may wait a short time for a row.

use std::sync::Arc;

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::row::Locked;
use super::statement::Statement;
use super::{PostgresStore, error, row};
use crate::Key;
use crate::store::sql_row::{WIDTH, in_order};
use crate::store::{InspectFilter, LockRow, OpenTransaction, StoreError, StoreErrorKind, sql_row};

pub(super) async fn inspect(
    store: &PostgresStore,
    filter: &InspectFilter,
) -> Result<Vec<LockRow>, StoreError> {
    let (prefix, held_only) = (filter.get_prefix(), !filter.get_include_free());
    let (after, limit) = (filter.get_after(), i64::from(filter.get_limit()));
    let key = after.map(|after| after.key.as_str());
    let rows = if filter.get_urgent_first() {
        let statement = rows(store, &store.sql.inspect_urgent, |query| {
            let query = query.bind(prefix).bind(held_only).bind(limit);
            let query = query.bind(after.map(|after| i32::from(after.rank)));
            query
                .bind(after.map(|after| after.acquired_at.as_micros()))
                .bind(key)
        });
        statement.await
    } else {
        let statement = rows(store, &store.sql.inspect, |query| {
            let query = query.bind(filter.first_key()).bind(prefix).bind(key);
            query.bind(held_only).bind(limit)
        });
        statement.await
    };
    let shown = |row: &PgRow| {
        let mut shown = row::shown(row)?;
        shown.transaction = row::locked(row)?.known();
        if held_only && !shown.is_held() {
            // It was kept when the row was chosen, and that has ended since.
            shown.transaction = Some(OpenTransaction::default());
        }
        Ok(shown)
    };
    let shown: Result<_, sqlx::Error> = rows?.iter().map(shown).collect();
    shown.map_err(|error| store.failed(error))
}

/// How often the row of one key is read while it is in doubt whether somebody has it locked.
const LOOKS: usize = 3;

/// The row of a key, and the transaction that has it locked.
///
/// If the row alone leaves that in doubt, its lock is tried. If that fails, the row is read again: an `xmax` that
/// is still the same is that of who has it. Another one was written meanwhile, perhaps by a statement of ours.
pub(super) async fn shown(store: &PostgresStore, key: &Key) -> Result<Option<LockRow>, StoreError> {
    let mut skipped_with = None;
    let mut looks = 1..=LOOKS;
    loop {
        let rows = rows(store, &store.sql.row, |query| query.bind(key.as_str())).await?;
        let Some(read) = rows.first() else { return Ok(None) };
        let mut row = row::shown(read).map_err(|error| store.failed(error))?;
        let xmax = match row::locked(read).map_err(|error| store.failed(error))? {
            Locked::Perhaps(xmax) if !row.has_lease() => xmax,
            locked => {
                row.transaction = locked.known();
                return Ok(Some(row));
            }
        };
        if skipped_with.as_ref() == Some(&xmax) || looks.next().is_none() {
            row.transaction = Some(OpenTransaction::default());
            return Ok(Some(row));
        }
        if !is_skipped(store, key).await? {
            return Ok(Some(row));
        }
        skipped_with = Some(xmax);
    }
}

/// Whether somebody has the row locked, or it is gone. A user that may not lock rows is told no.
async fn is_skipped(store: &PostgresStore, key: &Key) -> Result<bool, StoreError> {
    match rows(store, &store.sql.probe, |query| query.bind(key.as_str())).await {
        Ok(rows) => Ok(rows.is_empty()),
        Err(error) if error.kind() == StoreErrorKind::Refused => Ok(false),
        Err(error) => Err(error),
    }
}

/// Not an operator's call, so it may use an idle connection.
pub(super) async fn rows_of(store: &PostgresStore, keys: &[Key]) -> Vec<Result<Option<LockRow>, StoreError>> {
    let texts: Vec<&str> = keys.iter().map(Key::as_str).collect();
    let statement = Statement::new(&store.sql.rows).bind(texts);
    let found = async {
        // Read first: while the connection is taken, another one may be opened to another server.
        let sessions = store.identity.sessions();
        let mut connection = store.connections.take().await?;
        let rows = statement.fetch_all(&mut connection).await;
        let rows = connection.finish(rows.map_err(|error| store.failed(error)))?;
        if let Some(row) = rows.first() {
            let identity: String = row.try_get(WIDTH + 1).map_err(|error| store.failed(error))?;
            store.identity.was_read(identity, sessions);
        }
        let keyed = |row: &PgRow| {
            let key = row.try_get(0).and_then(sql_row::key);
            let read = row::shown(row).map_err(|error| store.failed(error));
            Ok((key.map_err(|error| store.failed(error))?, read))
        };
        rows.iter().map(keyed).collect()
    };
    in_order(keys, found.await)
}

/// Not an operator's call either.
pub(super) async fn make_free_rows(store: &PostgresStore, keys: &[Key]) -> Result<bool, StoreError> {
    let texts: Vec<&str> = keys.iter().map(Key::as_str).collect();
    let statement = Statement::new(&store.sql.make_free_rows).bind(texts);
    let mut connection = store.connections.take().await?;
    let made = statement.fetch_all(&mut connection).await;
    let made = connection.finish(made.map_err(|error| store.failed(error)))?;
    Ok(!made.is_empty())
}

pub(super) async fn revoke(store: &PostgresStore, key: &Key) -> Result<bool, StoreError> {
    let rows = rows(store, &store.sql.revoke, |query| query.bind(key.as_str())).await;
    unless_kept(store, key, rows).await
}

pub(super) async fn force_release(store: &PostgresStore, key: &Key) -> Result<bool, StoreError> {
    let fresh = Uuid::now_v7();
    let free = |text| rows(store, text, |query| query.bind(key.as_str()).bind(fresh));
    let rows = match free(&store.sql.force_release).await {
        Err(error) if error::is_from_full_queue(&error) => free(&store.sql.force_release_quiet).await,
        rows => rows,
    };
    unless_kept(store, key, rows).await
}

/// Whether the key was held, from the answer to a change of its row: no row means that it was free. It may also
/// be kept by an open transaction: then its row reads as free, or could not be locked in time.
async fn unless_kept(
    store: &PostgresStore,
    key: &Key,
    answer: Result<Vec<PgRow>, StoreError>,
) -> Result<bool, StoreError> {
    match &answer {
        Ok(rows) if !rows.is_empty() => return first_flag(store, rows),
        Err(error) if error.kind() != StoreErrorKind::Conflict => {}
        _ => {
            if let Some(row) = shown(store, key).await?
                && let Some(transaction) = &row.transaction
            {
                let message = transaction.keeps(row.now, &remedy(transaction));
                return Err(StoreError::new(StoreErrorKind::Conflict, message));
            }
        }
    }
    first_flag(store, &answer?)
}

/// How to end a transaction.
fn remedy(transaction: &OpenTransaction) -> String {
    if let Some(name) = &transaction.prepared {
        return format!("end it by ROLLBACK PREPARED '{}'", name.replace('\'', "''"));
    }
    match transaction.session {
        Some(session) => format!("end that session by SELECT pg_terminate_backend({session})"),
        None => "find its session in pg_stat_activity, where backend_xid is set, and end it by pg_terminate_backend"
            .to_owned(),
    }
}

/// Executes one statement on a connection of the store.
async fn rows<'q>(
    store: &PostgresStore,
    text: &Arc<str>,
    bind: impl FnOnce(Statement<'q>) -> Statement<'q>,
) -> Result<Vec<PgRow>, StoreError> {
    let statement = bind(Statement::new(text));
    let mut connection = store.connections.take_new().await?;
    let rows = statement
        .fetch_all(&mut connection)
        .await
        .map_err(|error| store.failed(error));
    store.finish(connection, rows).await
}

/// The boolean in the only row. No row means that the key was free.
fn first_flag(store: &PostgresStore, rows: &[PgRow]) -> Result<bool, StoreError> {
    let flag = rows.first().map(|row| row.try_get(0)).transpose();
    Ok(flag.map_err(|error| store.failed(error))?.unwrap_or(false))
}
