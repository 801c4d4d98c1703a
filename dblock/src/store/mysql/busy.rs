//! Keys that were busy when they were last asked for are read before anything is written.
//!
//! So a waiter's repeated ask costs one plain read, for any number of keys, and neither locks a row nor writes.
//! This memory decides only which statement is sent first, never the answer.

use sqlx::AssertSqlSafe;

use super::sql::Shared;
use super::{MySqlStore, row, sql};
use crate::Key;
use crate::store::rules::still_busy;
use crate::store::sharing::asks_to_share;
use crate::store::{Action, LockRow, Outcome, Request, StoreError, StoreErrorKind};

/// Answers the acquires of keys that are still busy and need no write. All else, errors too, is left to the
/// statements that write, unless the server cannot be reached. Returns the requests whose row is held and must
/// be locked.
pub(super) async fn look(
    store: &MySqlStore,
    requests: &[Request],
    answers: &mut [Option<Result<Outcome, StoreError>>],
) -> Result<Vec<usize>, StoreError> {
    let was_busy =
        |request: &Request| matches!(request.action, Action::Acquire(_)) && store.busy.contains(&request.key);
    let asked: Vec<usize> = (0..requests.len())
        .filter(|place| was_busy(&requests[*place]))
        .collect();
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let mut actions = asked.iter().map(|place| &requests[*place].action);
    let shared = if actions.any(asks_to_share) {
        Shared::Yes
    } else {
        Shared::No
    };
    let rows = match read(store, asked.iter().map(|place| &requests[*place].key), shared).await {
        Ok(rows) => rows,
        Err(error) if error.kind() == StoreErrorKind::Unreachable => return Err(error),
        Err(_) => return Ok(Vec::new()),
    };
    let mut held = Vec::new();
    for place in asked {
        let request = &requests[place];
        let row = rows.iter().find(|row| row.key == request.key);
        answers[place] = row.and_then(|row| still_busy(request, row)).map(Ok);
        if answers[place].is_none() && row.is_some_and(LockRow::is_held) {
            held.push(place);
        }
    }
    Ok(held)
}

async fn read(
    store: &MySqlStore,
    keys: impl Iterator<Item = &Key>,
    shared: Shared,
) -> Result<Vec<LockRow>, StoreError> {
    let sql = sql::look(&store.table_sql, keys, shared);
    let mut connection = store.connections.take().await?;
    let rows = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_all(&mut **connection)
        .await;
    let rows = rows.and_then(|rows| rows.iter().map(|row| row::with_clock(row, shared)).collect());
    connection.finish(rows.map_err(|error| store.failed(error)))
}
