//! Executes a batch with one statement per action. The requests of a failed statement are then executed one
//! by one.

use std::sync::Arc;

use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::certain::certain;
use super::session::Session;
use super::sql::Statements;
use super::statement::Statement;
use super::{PostgresStore, error, record, row};
use crate::store::clock::micros;
use crate::store::record::RecordChange;
use crate::store::{Acquire, Action, Extend, HandedOver, Kind, Outcome, Request, StoreError, StoreErrorKind};

type Answer = Result<Outcome, StoreError>;

/// A request with its place in the batch.
pub(super) type Placed<'a> = (usize, &'a Request);

/// The order of the statements: extends and releases go first, because only an acquire can be slow.
const ORDER: [Kind; 3] = [Kind::Extend, Kind::Release, Kind::Acquire];

/// [`Store::apply`](crate::store::Store::apply).
pub(super) async fn apply(store: &PostgresStore, requests: &[Request]) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = requests.iter().map(|_| None).collect();
    // Once no connection can be opened, the rest is not tried: each attempt may take seconds.
    let mut unreachable = None;
    for kind in ORDER {
        let mut parts = vec![group(kind, requests, true), group(kind, requests, false)];
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let executed = match &unreachable {
                None => execute(store, kind, &part, &mut answers).await,
                Some(error) => Err(StoreError::clone(error)),
            };
            let Err(error) = executed else { continue };
            // The error does not concern requests that an earlier statement answered. That statement is
            // committed, so its answer stands; sent again, the request could get another one.
            part.retain(|(place, _)| answers[*place].is_none());
            if part.len() > 1 && may_be_one_row(error.kind()) {
                parts.extend(part.into_iter().rev().map(|request| vec![request]));
                continue;
            }
            for (place, _) in part {
                answers[place] = Some(Err(error.clone()));
            }
            if error.kind() == StoreErrorKind::Unreachable {
                unreachable = Some(error);
            }
        }
    }
    // Requests that no statement answered found their row locked, or it was inserted, changed or deleted
    // meanwhile.
    let skipped = |answer: Option<Answer>| answer.unwrap_or(Ok(Outcome::Skipped));
    let answers: Vec<Answer> = answers.into_iter().map(skipped).collect();
    store.contended.note(requests, &answers);
    store.contended.note_wanted(requests, &answers);
    answers
}

/// The requests of one kind, those that change records or the others, in the byte order of their keys. Rows
/// are inserted in this order.
fn group(kind: Kind, requests: &[Request], recorded: bool) -> Vec<Placed<'_>> {
    let is_of = |request: &Request| Kind::of(&request.action) == kind && request.record.is_some() == recorded;
    let mut group: Vec<_> = requests
        .iter()
        .enumerate()
        .filter(|(_, request)| is_of(request))
        .collect();
    group.sort_unstable_by(|(_, a), (_, b)| a.key.cmp(&b.key));
    group
}

/// Whether the error of a statement may be caused by a single row.
fn may_be_one_row(kind: StoreErrorKind) -> bool {
    matches!(kind, StoreErrorKind::Conflict | StoreErrorKind::Other)
}

/// Fills in the answers to `part`, which is sorted by key. After an error, the answers from before it are
/// filled in.
async fn execute(
    store: &PostgresStore,
    kind: Kind,
    part: &[Placed<'_>],
    answers: &mut [Option<Answer>],
) -> Result<(), StoreError> {
    let mut connection = match kind {
        Kind::Extend => store.connections.take_reserved().await?,
        Kind::Release | Kind::Acquire => store.connections.take().await?,
    };
    let asked = ask(store, kind, part, answers, &mut connection).await;
    let recorded = part.iter().any(|(_, request)| request.record.is_some());
    let asked = asked.map_err(|error| {
        if recorded {
            store.record_failed(error)
        } else {
            store.failed(error)
        }
    });
    let certain = certain(&mut connection).await;
    if certain.is_err() {
        for (place, _) in part {
            answers[*place] = None;
        }
    }
    connection.finish(certain.and(asked))
}

/// First asks with the statement for the usual state of the rows, then with the general statement for the
/// rows that were in another state. Each statement is committed before its answers are filled in.
async fn ask(
    store: &PostgresStore,
    kind: Kind,
    part: &[Placed<'_>],
    answers: &mut [Option<Answer>],
    connection: &mut Session,
) -> Result<(), sqlx::Error> {
    let recorded = part.iter().any(|(_, request)| request.record.is_some());
    let statements = statements(store, kind, recorded);
    // A contended key is probably in no usual state: it is busy, or its row names a successor.
    let is_contended = |request: &Request| kind != Kind::Extend && store.contended.contains(&request.key);
    let likely = part.iter().filter(|(_, request)| !is_contended(request));
    let likely: Vec<Placed<'_>> = likely.copied().collect();
    let usual = match (&likely[..], &statements.one, &statements.many) {
        ([], ..) => None,
        ([(_, request)], Some(text), _) if inserts(request) => Some(one(text, kind, request)),
        (_, _, text) => text.as_ref().map(|text| many(text, kind, &likely)),
    };
    if let Some(usual) = usual {
        match usual.fetch_all(connection).await {
            // Nothing was carried out. The general statement can do without notifications.
            Err(error) if error::is_full_queue(&error) => {}
            rows => read(kind, &likely, &rows?, answers)?,
        }
    }
    let unanswered = part.iter().filter(|(place, _)| answers[*place].is_none());
    let rest: Vec<Placed<'_>> = unanswered.copied().collect();
    if !rest.is_empty() {
        let general = many(&statements.general, kind, &rest);
        let rows = match (general.fetch_all(connection).await, &statements.quiet) {
            (Err(error), Some(quiet)) if error::is_full_queue(&error) => {
                many(quiet, kind, &rest).fetch_all(connection).await
            }
            (rows, _) => rows,
        };
        read(kind, &rest, &rows?, answers)?;
    }
    Ok(())
}

fn read(
    kind: Kind,
    part: &[Placed<'_>],
    rows: &[PgRow],
    answers: &mut [Option<Answer>],
) -> Result<(), sqlx::Error> {
    for row in rows {
        let (place, outcome) = row::answer(kind, part, row)?;
        answers[place] = Some(Ok(outcome));
    }
    Ok(())
}

fn statements(store: &PostgresStore, kind: Kind, recorded: bool) -> &Statements {
    let sql = &store.sql;
    match (kind, recorded) {
        (Kind::Extend, _) => &sql.extend,
        (Kind::Release, false) => &sql.release,
        (Kind::Release, true) => &sql.release_recorded,
        (Kind::Acquire, false) => &sql.acquire,
        (Kind::Acquire, true) => &sql.acquire_recorded,
    }
}

fn one<'q>(text: &Arc<str>, kind: Kind, request: &'q Request) -> Statement<'q> {
    let query = Statement::new(text);
    let query = query.bind(request.key.as_str()).bind(request.lease_id);
    let query = match kind {
        Kind::Extend => query
            .bind(count(request))
            .bind(ttl(request))
            .bind(new_owner(request))
            .bind(new_holder(request))
            .bind(new_token(request)),
        Kind::Release => query,
        Kind::Acquire => query
            .bind(owner(request))
            .bind(ttl(request))
            .bind(holder(request))
            .bind(spare_tokens(request)),
    };
    match request.record.as_deref().and_then(RecordChange::entry) {
        Some(entry) => record::bind(query, entry),
        None => query,
    }
}

/// Whether the request changes no record, or inserts one.
fn inserts(request: &Request) -> bool {
    matches!(request.record.as_deref(), None | Some(RecordChange::Insert(_)))
}

fn column<'q, T>(part: &[Placed<'q>], value: impl Fn(&'q Request) -> T) -> Vec<T> {
    part.iter().map(|(_, request)| value(request)).collect()
}

fn many<'q>(text: &Arc<str>, kind: Kind, part: &[Placed<'q>]) -> Statement<'q> {
    let query = Statement::new(text);
    let query = query
        .bind(column(part, |request| request.key.as_str()))
        .bind(column(part, |request| request.lease_id));
    let query = match kind {
        Kind::Extend => query
            .bind(column(part, count))
            .bind(column(part, ttl))
            .bind(column(part, new_owner))
            .bind(column(part, new_holder))
            .bind(column(part, new_token)),
        Kind::Release => query,
        Kind::Acquire => query
            .bind(column(part, owner))
            .bind(column(part, ttl))
            .bind(column(part, holder))
            .bind(column(part, wanted_for))
            .bind(column(part, spare_tokens))
            .bind(column(part, waited)),
    };
    let changes: Option<Vec<_>> = part
        .iter()
        .map(|(_, request)| request.record.as_deref())
        .collect();
    match changes {
        Some(changes) if kind != Kind::Extend => record::bind_changes(query, &changes),
        _ => query,
    }
}

fn acquire(request: &Request) -> Option<&Acquire> {
    match &request.action {
        Action::Acquire(acquire) => Some(acquire),
        _ => None,
    }
}

fn extend(request: &Request) -> Option<&Extend> {
    match &request.action {
        Action::Extend(extend) => Some(extend),
        _ => None,
    }
}

fn count(request: &Request) -> i32 {
    extend(request).map_or(0, |extend| i32::try_from(extend.count).unwrap_or(i32::MAX))
}

fn ttl(request: &Request) -> i64 {
    match &request.action {
        Action::Acquire(acquire) => micros(acquire.ttl),
        Action::Extend(extend) => micros(extend.ttl),
        Action::Release => 0,
    }
}

fn owner(request: &Request) -> Uuid {
    acquire(request).map_or(Uuid::nil(), |acquire| acquire.owner)
}

fn holder(request: &Request) -> &str {
    acquire(request).map_or("", |acquire| &*acquire.holder)
}

fn wanted_for(request: &Request) -> Option<i64> {
    acquire(request)?.wanted_for.map(micros)
}

fn waited(request: &Request) -> Option<i64> {
    acquire(request)?.queue.map(micros)
}

fn spare_tokens(request: &Request) -> i64 {
    acquire(request).map_or(0, |acquire| acquire.spare_tokens.into())
}

fn handed_over(request: &Request) -> Option<&HandedOver> {
    extend(request)?.handed_over.as_ref()
}

fn new_owner(request: &Request) -> Option<Uuid> {
    handed_over(request).map(|to| to.owner)
}

fn new_holder(request: &Request) -> Option<&str> {
    handed_over(request).map(|to| &*to.holder)
}

fn new_token(request: &Request) -> Option<i64> {
    handed_over(request).map(|to| to.fence_token)
}
