//! A batch of requests: locks the rows, applies the rules to them here, and writes the changes.
//!
//! Two round trips, whatever the size. The first locks and reads the rows that nobody else has locked, with
//! the clock. The second writes and commits: one commit, so one flush to disk, for the whole batch. Between
//! the two the rows are locked by us, so the decision holds.
//!
//! Absent rows are inserted afterwards, in a statement of their own. It may wait for another process that
//! inserts the same key; no row is locked meanwhile. Requests for shared holds are batches of their own, which also read
//! and write the column `shared`. Records are changed in the transaction of their rows. That
//! may wait for another writer of the same record; the rows of the transaction are locked meanwhile.

use std::collections::VecDeque;

use super::session::Session;
use super::sql::Shared;
use super::{MySqlStore, busy, error, one, record, row, sql};
use crate::store::RecordChange;
use crate::store::clock::Timestamp;
use crate::store::rules::{carry_out, holder, still_busy};
use crate::store::sharing::asks_to_share;
use crate::store::{Action, Kind, LockRow, Outcome, Request, StoreError, StoreErrorKind, schema};

/// How often a batch that conflicts with others is tried as a whole before it is split.
const TRIES: u32 = 3;

pub(super) type Answer = Result<Outcome, StoreError>;

/// Requests by their index in the call, in the order of their keys.
struct Batch {
    members: Vec<usize>,
    shared: Shared,
    tries: u32,
}

/// Why requests of a batch have no answer yet.
struct Failure {
    error: StoreError,
    number: Option<u16>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing can have been carried out.
    Read,
    /// Something was written, or may have been.
    Write,
}

/// The reaction to a [`Failure`].
enum Next {
    Again,
    Split,
    Skipped,
    Fail,
}

/// [`Store::apply`](crate::store::Store::apply).
pub(super) async fn apply(store: &MySqlStore, requests: &[Request]) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = requests.iter().map(|_| None).collect();
    let held = match busy::look(store, requests, &mut answers).await {
        Ok(held) => held,
        Err(error) => return vec![Err(error); requests.len()],
    };
    let unanswered = (0..requests.len()).filter(|place| answers[*place].is_none());
    let (sharing, mut members): (Vec<usize>, Vec<usize>) = unanswered.partition(|place| {
        asks_to_share(&requests[*place].action) || is_shared_release(store, &requests[*place])
    });
    if let [only] = members[..]
        && !held.contains(&only)
        && requests[only].record.is_none()
    {
        answers[only] = one::answer(store, &requests[only]).await;
        members.retain(|place| answers[*place].is_none());
    }
    carry_out_all(store, requests, members, Shared::No, &mut answers).await;
    release_shared(store, requests, &mut answers).await;
    carry_out_all(store, requests, sharing, Shared::Yes, &mut answers).await;
    let unanswered = || {
        Err(StoreError::new(
            StoreErrorKind::Other,
            "the request was not answered",
        ))
    };
    let answers: Vec<Answer> = answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(unanswered))
        .collect();
    store.busy.note(requests, &answers);
    store.shared.note_shared(requests, &answers);
    answers
}

/// Whether a release is probably that of a shared hold. Then it is asked for as such first.
fn is_shared_release(store: &MySqlStore, request: &Request) -> bool {
    matches!(request.action, Action::Release) && store.shared.contains(&request.key)
}

/// Asks again for releases that were answered `Lost`: the lease may be a shared hold, which a row does not name as its
/// own. On a table that has no shared holds the answer stays.
async fn release_shared(store: &MySqlStore, requests: &[Request], answers: &mut [Option<Answer>]) {
    let is_lost = |place: &usize| {
        matches!(requests[*place].action, Action::Release)
            && requests[*place].record.is_none()
            && matches!(answers[*place], Some(Ok(Outcome::Lost)))
    };
    let lost: Vec<usize> = (0..requests.len()).filter(is_lost).collect();
    for place in &lost {
        answers[*place] = None;
    }
    carry_out_all(store, requests, lost.clone(), Shared::Yes, answers).await;
    for place in lost {
        if matches!(&answers[place], Some(Err(error)) if error.kind() == StoreErrorKind::Schema) {
            answers[place] = Some(Ok(Outcome::Lost));
        }
    }
}

/// Fills in the answers to these requests.
async fn carry_out_all(
    store: &MySqlStore,
    requests: &[Request],
    mut members: Vec<usize>,
    shared: Shared,
    answers: &mut [Option<Answer>],
) {
    // All processes insert in this order, so inserts never deadlock.
    members.sort_unstable_by(|a, b| requests[*a].key.cmp(&requests[*b].key));
    let mut queue = VecDeque::from([Batch {
        members,
        shared,
        tries: 0,
    }]);
    while let Some(mut batch) = queue.pop_front() {
        if batch.members.is_empty() {
            continue;
        }
        batch.tries += 1;
        let Err(failure) = attempt(store, requests, &batch, answers).await else {
            continue;
        };
        batch.members.retain(|member| answers[*member].is_none());
        match next(&failure, &batch) {
            Next::Again => queue.push_front(batch),
            Next::Split => {
                queue.extend(batch.members.into_iter().map(|member| Batch {
                    members: vec![member],
                    shared,
                    tries: 0,
                }));
            }
            Next::Skipped => {
                for member in batch.members {
                    answers[member] = Some(Ok(Outcome::Skipped));
                }
            }
            Next::Fail => {
                if failure.error.kind() == StoreErrorKind::Unreachable {
                    // The other requests would wait for the same error.
                    batch
                        .members
                        .extend(queue.drain(..).flat_map(|batch| batch.members));
                }
                for member in batch.members {
                    answers[member] = Some(Err(failure.error.clone()));
                }
            }
        }
    }
}

fn next(failure: &Failure, batch: &Batch) -> Next {
    let alone = batch.members.len() <= 1;
    let kind = failure.error.kind();
    match failure.number {
        // The first statement waits only while the table is altered, which concerns every request.
        Some(error::LOCK_WAIT_TIMEOUT) if failure.stage == Stage::Read => Next::Fail,
        Some(error::LOCK_WAIT_TIMEOUT) if alone => Next::Skipped,
        Some(error::DUPLICATE_KEY) if alone && batch.tries >= TRIES => Next::Skipped,
        Some(error::DUPLICATE_KEY | error::DEADLOCK | error::RECORD_CHANGED) if batch.tries < TRIES => {
            Next::Again
        }
        // The server closes idle connections after a while, which shows only at the next use.
        _ if kind == StoreErrorKind::Interrupted && failure.stage == Stage::Read && batch.tries < 2 => {
            Next::Again
        }
        _ if matches!(kind, StoreErrorKind::Conflict | StoreErrorKind::Other) && !alone => Next::Split,
        _ => Next::Fail,
    }
}

/// Runs the members as one batch on one connection. After a failure some may have answers already.
async fn attempt(
    store: &MySqlStore,
    requests: &[Request],
    batch: &Batch,
    answers: &mut [Option<Answer>],
) -> Result<(), Failure> {
    let no_connection = |error| Failure {
        error,
        number: None,
        stage: Stage::Read,
    };
    let extends = |member: &usize| Kind::of(&requests[*member].action) == Kind::Extend;
    let connection = if batch.members.iter().all(extends) {
        store.connections.take_reserved().await
    } else {
        store.connections.take().await
    };
    let mut connection = connection.map_err(no_connection)?;
    let run = Run {
        store,
        requests,
        members: &batch.members,
        shared: batch.shared,
    };
    match run.on(&mut connection, answers).await {
        Ok(()) => {
            connection.keep();
            Ok(())
        }
        Err(Failure { error, number, stage }) => {
            // The server answered. A proper close ends the row locks now, and not when the server notices the
            // closed socket.
            let answered = error.kind() != StoreErrorKind::Interrupted
                && sqlx::raw_sql("ROLLBACK").execute(&mut **connection).await.is_ok();
            // The server may be the wrong one: the next connection may reach another.
            if answered && error.kind() != StoreErrorKind::Unreachable {
                connection.keep();
                return Err(Failure { error, number, stage });
            }
            connection
                .finish(Err(error))
                .map_err(|error| Failure { error, number, stage })
        }
    }
}

/// A row that was absent, with its member, the answer, and the change of its record.
type Insert = (usize, Outcome, LockRow, Option<RecordChange>);

/// One attempt at one batch.
#[derive(Clone, Copy)]
struct Run<'a> {
    store: &'a MySqlStore,
    requests: &'a [Request],
    members: &'a [usize],
    shared: Shared,
}

impl Run<'_> {
    async fn on(self, connection: &mut Session, answers: &mut [Option<Answer>]) -> Result<(), Failure> {
        let Self {
            store,
            requests,
            members,
            shared,
        } = self;
        let keys = members.iter().map(|member| &requests[*member].key);
        let (rows, _) = self
            .read(connection, sql::lock_rows(&store.table_sql, keys, shared))
            .await?;

        let mut seen = vec![false; members.len()];
        let mut outcomes: Vec<(usize, Answer)> = Vec::with_capacity(members.len());
        let mut rewritten = Vec::new();
        let mut changes = Vec::new();
        for mut row in rows {
            let Some(place) = self.place(&row) else { continue };
            seen[place] = true;
            let answer = carry_out(&requests[members[place]], &mut row);
            let answer = answer.map(|carried_out| {
                rewritten.extend(carried_out.changed.then_some(row));
                changes.extend(carried_out.record.map(|change| (members[place], change)));
                carried_out.outcome
            });
            outcomes.push((members[place], answer));
        }

        let missing: Vec<usize> = members
            .iter()
            .zip(&seen)
            .filter(|(_, seen)| !**seen)
            .map(|(m, _)| *m)
            .collect();
        let inserts = self.look_at_missing(connection, &missing, &mut outcomes).await?;

        let rewrite =
            (!rewritten.is_empty()).then(|| sql::rewrite(&store.table_sql, rewritten.iter(), shared));
        let written = self.write(connection, rewrite, &changes).await?;
        for (member, answer) in outcomes {
            let recorded = written.contains(&member);
            answers[member] = Some(answer.map(|outcome| outcome.with_recorded(recorded)));
        }

        if !inserts.is_empty() {
            let rows = inserts.iter().map(|(_, _, row, _)| row);
            let changes: Vec<_> = inserts
                .iter()
                .filter_map(|(member, _, _, change)| Some((*member, change.clone()?)))
                .collect();
            let begin = (!changes.is_empty()).then(|| "START TRANSACTION".to_owned());
            let insert = sql::insert(&store.table_sql, rows, shared);
            let insert = begin.into_iter().chain([insert]);
            let written = self.write(connection, insert, &changes).await?;
            for (member, outcome, ..) in inserts {
                answers[member] = Some(Ok(outcome.with_recorded(written.contains(&member))));
            }
        }
        Ok(())
    }

    /// Rows that the locking read did not return are absent or locked by others. Returns the rows to insert.
    async fn look_at_missing(
        self,
        connection: &mut Session,
        missing: &[usize],
        outcomes: &mut Vec<(usize, Answer)>,
    ) -> Result<Vec<Insert>, Failure> {
        let mut inserts = Vec::new();
        if missing.is_empty() {
            return Ok(inserts);
        }
        let keys = missing.iter().map(|member| &self.requests[*member].key);
        let (locked, now) = self
            .read(
                connection,
                sql::read_rows(&self.store.table_sql, keys, self.shared),
            )
            .await?;
        for &member in missing {
            let request = &self.requests[member];
            if let Some(row) = locked.iter().find(|row| row.key == request.key) {
                outcomes.push((member, Ok(judge_locked(request, row))));
                continue;
            }
            let mut row = LockRow::new(request.key.clone(), Timestamp::from_micros(now));
            match carry_out(request, &mut row) {
                Ok(done) if done.changed => inserts.push((member, done.outcome, row, done.record)),
                answer => outcomes.push((member, answer.map(|done| done.outcome))),
            }
        }
        Ok(inserts)
    }

    /// The index, among the members, of the request for a row.
    fn place(self, row: &LockRow) -> Option<usize> {
        self.members
            .binary_search_by(|member| self.requests[*member].key.cmp(&row.key))
            .ok()
    }

    async fn read(self, connection: &mut Session, sql: Vec<String>) -> Result<(Vec<LockRow>, i64), Failure> {
        row::fetch(connection, sql, self.shared).await.map_err(|error| {
            let number = error::number(&error);
            let error = if self.shared == Shared::Yes && number == Some(error::NO_SUCH_COLUMN) {
                schema::no_shared(&self.store.table).with_source(error)
            } else {
                self.store.failed(error)
            };
            Failure {
                error,
                number,
                stage: Stage::Read,
            }
        })
    }

    /// Writes rows by `sql`, changes records, and commits. Returns the members whose records were changed.
    async fn write(
        self,
        connection: &mut Session,
        sql: impl IntoIterator<Item = String>,
        changes: &[(usize, RecordChange)],
    ) -> Result<Vec<usize>, Failure> {
        let changing = changes.iter().map(|(member, change)| {
            record::change(&self.store.record_table(), &self.requests[*member].key, change)
        });
        let commit = "COMMIT".to_owned();
        let statements = sql.into_iter().chain(changing).chain([commit]).collect();
        let matched = connection.run(statements).await.map_err(|error| {
            let number = error::number(&error);
            let error = match changes {
                [] => self.store.failed(error),
                _ => self.store.record_failed(error),
            };
            Failure {
                error,
                number,
                stage: Stage::Write,
            }
        })?;
        // The last count is that of the commit.
        let of_changes = matched.iter().rev().skip(1);
        let written = changes.iter().rev().zip(of_changes);
        Ok(written
            .filter(|(_, matched)| **matched > 0)
            .map(|((member, _), _)| *member)
            .collect())
    }
}

/// The answer for a row that is locked, from its last committed state: for an acquire the key is busy, any other
/// request must ask again.
fn judge_locked(request: &Request, row: &LockRow) -> Outcome {
    if asks_to_share(&request.action) {
        // There may be room.
        return still_busy(request, row).unwrap_or(Outcome::Skipped);
    }
    let acquire = matches!(request.action, Action::Acquire(_));
    if acquire && row.is_held() && row.lease_id != request.lease_id {
        Outcome::Busy(holder(row))
    } else {
        Outcome::Skipped
    }
}
