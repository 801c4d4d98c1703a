//! Requests for shared holds. Each part of a batch takes two statements: one reads the rows, and one writes what the
//! rules have decided, where a row is still the one that was read. [`super::sql`] has them.

use std::sync::Arc;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::certain::certain;
use super::session::Session;
use super::sql::{MAY_ENTER, RELEASED};
use super::statement::Statement;
use super::{PostgresStore, error, row};
use crate::Key;
use crate::store::clock::{Timestamp, micros};
use crate::store::rules::{CarriedOut, carry_out, may_be_forgotten};
use crate::store::sharing;
use crate::store::sql_row::{self, WIDTH, with_shared};
use crate::store::{
    Action, Kind, LockRow, Outcome, Released, Request, StoreError, StoreErrorKind, Successor, WakeUp, schema,
};

type Answer = Result<Outcome, StoreError>;

/// How often a row is read that has changed before it was written.
const TRIES: usize = 3;

/// Fills in the answers to `part`, all of one kind, by their places in the batch. No answer: the row was locked.
///
/// # Errors
/// That of a statement. What was answered before it counts.
pub(super) async fn execute(
    store: &PostgresStore,
    requests: &[Request],
    part: &[usize],
    answers: &mut [Option<Answer>],
) -> Result<(), StoreError> {
    let Some(first) = part.first() else { return Ok(()) };
    let mut connection = match Kind::of(&requests[*first].action) {
        Kind::Extend => store.connections.take_reserved().await?,
        Kind::Release | Kind::Acquire => store.connections.take().await?,
    };
    let part_of = Part { store, requests };
    let asked = part_of.ask(part, answers, &mut connection).await;
    let asked = asked.map_err(|error| {
        if error::is_missing_column(&error) {
            schema::no_shared(&store.table).with_source(error)
        } else {
            store.failed(error)
        }
    });
    let confirmed = certain(&mut connection).await;
    if confirmed.is_err() {
        for place in part {
            answers[*place] = None;
        }
    }
    connection.finish(confirmed.and(asked))
}

/// Whether a release is probably that of a shared hold. Then it is asked for as such first.
pub(super) fn is_release(store: &PostgresStore, request: &Request) -> bool {
    matches!(request.action, Action::Release)
        && request.record.is_none()
        && store.shared.contains(&request.key)
}

/// Asks for releases that may be those of shared holds, which a row does not name as its own lease. They have no answer
/// yet, or `Lost`, which stays on a table that has no shared holds.
pub(super) async fn release(
    store: &PostgresStore,
    requests: &[Request],
    asked: Vec<usize>,
    answers: &mut [Option<Answer>],
) {
    for place in &asked {
        answers[*place] = None;
    }
    let answer = match execute(store, requests, &asked, answers).await {
        // One that others have outrun is not asked for as that of an exclusive lock: it would seem to be lost.
        Ok(()) => Ok(Outcome::Skipped),
        Err(error) if error.kind() == StoreErrorKind::Schema => Ok(Outcome::Lost),
        Err(error) => Err(error),
    };
    for place in asked {
        answers[place].get_or_insert_with(|| answer.clone());
    }
}

/// A row to write, and the request at `place` that changes it.
struct Change {
    place: usize,
    outcome: Outcome,
    row: LockRow,
    /// `None` for a row that is not there.
    version: Option<String>,
    /// The payload of the notification.
    tells: Option<String>,
}

#[derive(Clone, Copy)]
struct Part<'a> {
    store: &'a PostgresStore,
    requests: &'a [Request],
}

impl Part<'_> {
    async fn ask(
        self,
        part: &[usize],
        answers: &mut [Option<Answer>],
        connection: &mut Session,
    ) -> Result<(), sqlx::Error> {
        let mut open = part.to_vec();
        for _ in 0..TRIES {
            let (mut rewritten, mut inserted, mut unchanged) = (Vec::new(), Vec::new(), Vec::new());
            for (row, version) in self.read(&open, connection).await? {
                let place = self.place(&open, &row.key)?;
                match self.decide(place, row, version) {
                    Err(refused) => answers[place] = Some(Err(refused)),
                    Ok(Decided::Answer(outcome)) => answers[place] = Some(Ok(outcome)),
                    Ok(Decided::IfUnchanged(change)) => unchanged.push(change),
                    Ok(Decided::Write(change)) if change.version.is_none() => inserted.push(change),
                    Ok(Decided::Write(change)) => rewritten.push(change),
                }
            }
            // Inserts come first, because only they may wait: no row is locked meanwhile.
            for (changes, write) in [
                (inserted, Write::Insert),
                (rewritten, Write::Rewrite),
                (unchanged, Write::Nothing),
            ] {
                if !changes.is_empty() {
                    self.write(changes, write, answers, connection).await?;
                }
            }
            open.retain(|place| answers[*place].is_none());
            if open.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// The rows of these requests, each with its version.
    async fn read(
        self,
        open: &[usize],
        connection: &mut Session,
    ) -> Result<Vec<(LockRow, Option<String>)>, sqlx::Error> {
        let keys: Vec<&str> = open
            .iter()
            .map(|place| self.requests[*place].key.as_str())
            .collect();
        let read = Statement::new(&self.store.sql.shared.read).bind(keys);
        let rows = read.fetch_all(connection).await?;
        let read = |row: &PgRow| {
            let version: Option<String> = row.try_get("version")?;
            let found = if version.is_some() {
                with_shared(row, row::lock_row(row)?)?
            } else {
                let key = sql_row::key(row.try_get("asked")?)?;
                LockRow::new(key, Timestamp::from_micros(row.try_get(WIDTH)?))
            };
            Ok((found, version))
        };
        rows.iter().map(read).collect()
    }

    /// The place of the request for a key.
    fn place(self, open: &[usize], key: &Key) -> Result<usize, sqlx::Error> {
        let found = open.iter().find(|place| self.requests[**place].key == *key);
        found
            .copied()
            .ok_or_else(|| row::unexpected("a key that was not asked for"))
    }

    fn decide(self, place: usize, mut row: LockRow, version: Option<String>) -> Result<Decided, StoreError> {
        let CarriedOut {
            outcome,
            changed,
            tells,
            ..
        } = carry_out(&self.requests[place], &mut row)?;
        if !changed {
            // Somebody who has the row locked may be about to change these answers.
            let may_change = version.is_some() && matches!(outcome, Outcome::Lost | Outcome::Queued { .. });
            if !may_change {
                return Ok(Decided::Answer(outcome));
            }
        }
        let tells = tells.as_ref().and_then(payload);
        let change = Change {
            place,
            outcome,
            row,
            version,
            tells,
        };
        Ok(if changed {
            Decided::Write(change)
        } else {
            Decided::IfUnchanged(change)
        })
    }

    /// Fills in the answers to what was written.
    async fn write(
        self,
        changes: Vec<Change>,
        write: Write,
        answers: &mut [Option<Answer>],
        connection: &mut Session,
    ) -> Result<(), sqlx::Error> {
        let sql = &self.store.sql.shared;
        let rows = match write {
            Write::Nothing => {
                let statement = versions(keys(Statement::new(&sql.unchanged), &changes), &changes);
                statement.fetch_all(connection).await?
            }
            Write::Insert => columns(&sql.insert, &changes).fetch_all(connection).await?,
            Write::Rewrite => {
                let flushes = changes.iter().any(|change| !may_be_forgotten(&change.outcome));
                let text = |tells: bool| {
                    let statement = versions(columns(&sql.write, &changes), &changes);
                    let tells = |change| Change::tells(change).filter(|_| tells);
                    statement
                        .bind(changes.iter().map(tells).collect::<Vec<_>>())
                        .bind(changes.iter().map(Change::passes_on).collect::<Vec<_>>())
                        .bind(flushes)
                };
                match text(true).fetch_all(connection).await {
                    Err(error) if error::is_full_queue(&error) => text(false).fetch_all(connection).await?,
                    rows => rows?,
                }
            }
        };
        let mut written = Vec::with_capacity(rows.len());
        for row in &rows {
            written.push(row.try_get::<&str, _>(0)?);
        }
        for change in changes {
            if written.contains(&change.row.key.as_str()) {
                answers[change.place] = Some(Ok(change.outcome));
            }
        }
        Ok(())
    }
}

/// What to tell those that listen. [`super::listen`] reads it.
fn payload(wake_up: &WakeUp) -> Option<String> {
    match wake_up {
        // The statement writes it.
        WakeUp::PassedOn { .. } => Some(String::new()),
        WakeUp::MayEnter {
            key, inside, next, ..
        } => {
            let next = next.map(|(lease_id, waited)| format!("{lease_id}{}", micros(waited)));
            let next = next.unwrap_or_default();
            Some(format!("{MAY_ENTER}{inside} {next} {key}"))
        }
        WakeUp::Released(key) => Some(format!("{RELEASED}{key}")),
        _ => None,
    }
}

/// What the rules say of a request.
enum Decided {
    Answer(Outcome),
    /// The answer counts if nobody has the row locked, and it is still the same.
    IfUnchanged(Change),
    Write(Change),
}

#[derive(Clone, Copy)]
enum Write {
    Insert,
    Rewrite,
    Nothing,
}

impl Change {
    fn passes_on(&self) -> bool {
        matches!(self.outcome, Outcome::Released(Released::PassedOn))
    }

    fn tells(&self) -> Option<&str> {
        self.tells.as_deref()
    }
}

fn keys<'q>(statement: Statement<'q>, changes: &'q [Change]) -> Statement<'q> {
    statement.bind(
        changes
            .iter()
            .map(|change| change.row.key.as_str())
            .collect::<Vec<_>>(),
    )
}

fn versions<'q>(statement: Statement<'q>, changes: &'q [Change]) -> Statement<'q> {
    statement.bind(
        changes
            .iter()
            .map(|change| change.version.as_deref())
            .collect::<Vec<_>>(),
    )
}

/// Binds the columns of the rows, and `shared`.
fn columns<'q>(text: &Arc<str>, changes: &'q [Change]) -> Statement<'q> {
    fn of<'q, T>(changes: &'q [Change], value: impl Fn(&'q LockRow) -> T) -> Vec<T> {
        changes.iter().map(|change| value(&change.row)).collect()
    }
    fn next<'q, T>(changes: &'q [Change], value: impl Fn(&'q Successor) -> T) -> Vec<Option<T>> {
        of(changes, |row| row.next.as_ref().map(&value))
    }
    let count = |row: &LockRow| i32::try_from(row.reentrant_count).unwrap_or(i32::MAX);
    let next_until = |row: &LockRow| row.next.as_ref().map_or(0, |next| next.until.as_micros());
    keys(Statement::new(text), changes)
        .bind(of(changes, |row| row.owner))
        .bind(of(changes, count))
        .bind(of(changes, |row| row.expire_at.as_micros()))
        .bind(of(changes, |row| row.lease_id))
        .bind(of(changes, |row| row.fence_token))
        .bind(of(changes, |row| row.fence_ceiling))
        .bind(of(changes, |row| row.wanted_until.as_micros()))
        .bind(of(changes, |row| row.acquired_at.as_micros()))
        .bind(of(changes, |row| row.holder.as_str()))
        .bind(of(changes, |row| row.revoked))
        .bind(next(changes, |next| next.lease_id))
        .bind(next(changes, |next| next.owner))
        .bind(next(changes, |next| next.holder.as_str()))
        .bind(next(changes, |next| micros(next.ttl)))
        .bind(next(changes, |next| i64::from(next.spare_tokens)))
        .bind(next(changes, |next| next.since.as_micros()))
        .bind(of(changes, next_until))
        .bind(of(changes, sharing::column))
}
