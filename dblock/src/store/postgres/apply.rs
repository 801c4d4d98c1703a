//! Executes a batch with one statement per action. The requests of a failed statement are then executed one
//! by one. Below are the actions: the statements of each, and their parameters.

use std::sync::Arc;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::certain::certain;
use super::session::Session;
use super::sql::{Sql, Statements};
use super::statement::Statement;
use super::{PostgresStore, error, record, row, shared};
use crate::store::clock::micros;
use crate::store::sharing::asks_to_share;
use crate::store::sql_error::unsupported_action;
use crate::store::{
    Acquire, Action, Extend, HandedOver, Kind, Outcome, RecordChange, Request, StoreError, StoreErrorKind,
    Transfer,
};

type Answer = Result<Outcome, StoreError>;

/// [`Store::apply`](crate::store::Store::apply).
pub(super) async fn apply(store: &PostgresStore, requests: &[Request]) -> Vec<Answer> {
    let mut batch = Batch {
        store,
        answers: requests
            .iter()
            .map(|request| unsupported(&request.action))
            .collect(),
        unreachable: None,
    };
    // Acquires last, because only they can be slow.
    batch.carry_out::<Extend>(requests).await;
    batch.share(requests, Kind::Extend).await;
    let shared: Vec<usize> = (0..requests.len())
        .filter(|place| shared::is_release(store, &requests[*place]))
        .collect();
    shared::release(store, requests, shared.clone(), &mut batch.answers).await;
    batch.carry_out::<Release>(requests).await;
    let is_lost = |place: &usize| {
        let request = &requests[*place];
        // A shared hold has no record, which the shared statement would not change.
        let release =
            matches!(request.action, Action::Release) && request.record.is_none() && !shared.contains(place);
        release && matches!(batch.answers[*place], Some(Ok(Outcome::Lost)))
    };
    let lost = (0..requests.len()).filter(is_lost).collect();
    shared::release(store, requests, lost, &mut batch.answers).await;
    batch.carry_out::<Transfer>(requests).await;
    batch.carry_out::<Acquire>(requests).await;
    batch.share(requests, Kind::Acquire).await;
    // No statement answered: the row was locked, or inserted, changed or deleted meanwhile.
    let skipped = |answer: Option<Answer>| answer.unwrap_or(Ok(Outcome::Skipped));
    let answers: Vec<Answer> = batch.answers.into_iter().map(skipped).collect();
    store.contended.note(requests, &answers);
    store.contended.note_wanted(requests, &answers);
    store.shared.note_shared(requests, &answers);
    answers
}

/// The answer to an action that this version does not know.
fn unsupported(action: &Action) -> Option<Answer> {
    match action {
        Action::Extend(_) | Action::Release | Action::Acquire(_) | Action::Transfer(_) => None,
        _ => Some(Err(unsupported_action())),
    }
}

/// A batch on its way.
struct Batch<'a> {
    store: &'a PostgresStore,
    answers: Vec<Option<Answer>>,
    /// After a failed connect the rest is not tried: each attempt may take seconds.
    unreachable: Option<StoreError>,
}

impl Batch<'_> {
    /// Carries out the requests of this kind for shared holds.
    async fn share(&mut self, requests: &[Request], kind: Kind) {
        let of_kind = |place: &usize| {
            let action = &requests[*place].action;
            asks_to_share(action) && Kind::of(action) == kind
        };
        let mut parts = vec![(0..requests.len()).filter(of_kind).collect::<Vec<_>>()];
        while let Some(mut part) = parts.pop() {
            let executed = match &self.unreachable {
                None => shared::execute(self.store, requests, &part, &mut self.answers).await,
                Some(error) => Err(error.clone()),
            };
            let Err(error) = executed else { continue };
            part.retain(|place| self.answers[*place].is_none());
            if part.len() > 1 && may_be_one_row(error.kind()) {
                parts.extend(part.into_iter().map(|place| vec![place]));
                continue;
            }
            for place in part {
                self.answers[place] = Some(Err(error.clone()));
            }
            if error.kind() == StoreErrorKind::Unreachable {
                self.unreachable = Some(error);
            }
        }
    }

    async fn carry_out<A: ByStatement>(&mut self, requests: &[Request]) {
        let mut parts = vec![group::<A>(requests, true), group(requests, false)];
        while let Some(mut part) = parts.pop() {
            // Some releases are answered already.
            part.retain(|placed| self.answers[placed.place].is_none());
            if part.is_empty() {
                continue;
            }
            let executed = match &self.unreachable {
                None => execute(self.store, &part, &mut self.answers).await,
                Some(error) => Err(error.clone()),
            };
            let Err(error) = executed else { continue };
            // Answers of earlier statements count, because those are committed. A repeated request could get
            // another answer.
            part.retain(|placed| self.answers[placed.place].is_none());
            if part.len() > 1 && may_be_one_row(error.kind()) {
                parts.extend(part.into_iter().rev().map(|placed| vec![placed]));
                continue;
            }
            for placed in part {
                self.answers[placed.place] = Some(Err(error.clone()));
            }
            if error.kind() == StoreErrorKind::Unreachable {
                self.unreachable = Some(error);
            }
        }
    }
}

/// The requests of one action on exclusive locks, with records or without, in the byte order of their keys. Rows are inserted in
/// this order.
fn group<A: ByStatement>(requests: &[Request], recorded: bool) -> Vec<Placed<'_, A>> {
    let placed = |(place, request)| Placed::new(place, request);
    let of_kind = requests.iter().enumerate().filter_map(placed);
    let mut group: Vec<_> = of_kind
        .filter(|placed: &Placed<'_, A>| placed.request.record.is_some() == recorded)
        .collect();
    group.sort_unstable_by(|a, b| a.request.key.cmp(&b.request.key));
    group
}

/// Whether the error of a statement may be caused by a single row.
fn may_be_one_row(kind: StoreErrorKind) -> bool {
    matches!(kind, StoreErrorKind::Conflict | StoreErrorKind::Other)
}

/// Fills in the answers to `part`, which is sorted by key; after an error, those from before it.
async fn execute<A: ByStatement>(
    store: &PostgresStore,
    part: &[Placed<'_, A>],
    answers: &mut [Option<Answer>],
) -> Result<(), StoreError> {
    let mut connection = match A::KIND {
        Kind::Extend => store.connections.take_reserved().await?,
        Kind::Release | Kind::Acquire => store.connections.take().await?,
    };
    let asked = ask(store, part, answers, &mut connection).await;
    let recorded = part.iter().any(|placed| placed.request.record.is_some());
    let asked = asked.map_err(|error| {
        if recorded {
            store.record_failed(error)
        } else {
            store.failed(error)
        }
    });
    let confirmed = certain(&mut connection).await;
    if confirmed.is_err() {
        for placed in part {
            answers[placed.place] = None;
        }
    }
    connection.finish(confirmed.and(asked))
}

/// Sends the statement for rows in their usual state, and then the general one for the other rows. Each is
/// committed before its answers are filled in.
async fn ask<A: ByStatement>(
    store: &PostgresStore,
    part: &[Placed<'_, A>],
    answers: &mut [Option<Answer>],
    connection: &mut Session,
) -> Result<(), sqlx::Error> {
    let recorded = part.iter().any(|placed| placed.request.record.is_some());
    let statements = A::statements(&store.sql, recorded);
    // A contended key is probably busy, or its row names a successor.
    let is_contended =
        |placed: &Placed<'_, A>| A::KIND != Kind::Extend && store.contended.contains(&placed.request.key);
    let likely = part.iter().filter(|placed| !is_contended(placed));
    let likely: Vec<_> = likely.copied().collect();
    let usual = match (&likely[..], &statements.one, &statements.many) {
        ([], ..) => None,
        ([placed], Some(text), _) if placed.fits_one() => Some(one(text, *placed)),
        (_, _, text) => text.as_ref().map(|text| many(text, &likely)),
    };
    if let Some(usual) = usual {
        match usual.fetch_all(connection).await {
            // Nothing was carried out. The general statement also works without notifications.
            Err(error) if error::is_full_queue(&error) => {}
            rows => read(&likely, &rows?, answers)?,
        }
    }
    let unanswered = part.iter().filter(|placed| answers[placed.place].is_none());
    let rest: Vec<_> = unanswered.copied().collect();
    if !rest.is_empty() {
        let general = many(&statements.general, &rest);
        let rows = match (general.fetch_all(connection).await, &statements.quiet) {
            (Err(error), Some(quiet)) if error::is_full_queue(&error) => {
                many(quiet, &rest).fetch_all(connection).await
            }
            (rows, _) => rows,
        };
        read(&rest, &rows?, answers)?;
    }
    Ok(())
}

/// Fills in the answers that these rows are.
fn read<A: ByStatement>(
    part: &[Placed<'_, A>],
    rows: &[PgRow],
    answers: &mut [Option<Answer>],
) -> Result<(), sqlx::Error> {
    for row in rows {
        let key: &str = row.try_get(0)?;
        let found = part
            .binary_search_by(|placed| placed.request.key.as_str().cmp(key))
            .map_err(|_| row::unexpected("a key that was not asked for"))?;
        let Placed { place, request, .. } = part[found];
        let outcome = row::outcome(row, A::KIND, request.record.is_some())?;
        let outcome = match &request.action {
            Action::Extend(ask) => outcome.with_count(ask.count.max(1)),
            _ => outcome,
        };
        answers[place] = Some(Ok(outcome));
    }
    Ok(())
}

// ── Actions ─────────────────────────────────────────────────────────────────────────────────────────

/// An action that statements carry out.
pub(super) trait ByStatement: Sized + 'static {
    const KIND: Kind;

    fn of(action: &Action) -> Option<&Self>;

    fn statements(sql: &Sql, recorded: bool) -> &Statements;

    /// Binds what follows the key and the lease.
    fn bind_one<'q>(&'q self, query: Statement<'q>) -> Statement<'q>;

    /// As [`bind_one`](Self::bind_one), with an array for each column.
    fn bind_many<'q>(part: &[Placed<'q, Self>], query: Statement<'q>) -> Statement<'q>;
}

/// A request with its index in the batch.
pub(super) struct Placed<'a, A> {
    pub(super) place: usize,
    pub(super) request: &'a Request,
    action: &'a A,
}

impl<A> Clone for Placed<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Placed<'_, A> {}

impl<'a, A: ByStatement> Placed<'a, A> {
    /// `None` for another action, and for one on a shared hold.
    fn new(place: usize, request: &'a Request) -> Option<Self> {
        let action = A::of(&request.action).filter(|_| !asks_to_share(&request.action));
        action.map(|action| Self {
            place,
            request,
            action,
        })
    }

    /// Whether the statement for one row is enough for what the request does to a record: nothing, or an insert.
    fn fits_one(self) -> bool {
        matches!(
            self.request.record.as_deref(),
            None | Some(RecordChange::Insert(_))
        )
    }
}

/// The statement for one row in its usual state.
fn one<'q, A: ByStatement>(text: &Arc<str>, placed: Placed<'q, A>) -> Statement<'q> {
    let request = placed.request;
    let query = Statement::new(text)
        .bind(request.key.as_str())
        .bind(request.lease_id);
    let query = placed.action.bind_one(query);
    match request.record.as_deref().and_then(RecordChange::entry) {
        Some(entry) => record::bind(query, entry),
        None => query,
    }
}

/// A statement for any number of rows.
fn many<'q, A: ByStatement>(text: &Arc<str>, part: &[Placed<'q, A>]) -> Statement<'q> {
    let requests = || part.iter().map(|placed| placed.request);
    let query = Statement::new(text)
        .bind(requests().map(|request| request.key.as_str()).collect::<Vec<_>>())
        .bind(requests().map(|request| request.lease_id).collect::<Vec<_>>());
    let query = A::bind_many(part, query);
    let changes: Option<Vec<_>> = requests().map(|request| request.record.as_deref()).collect();
    match changes {
        Some(changes) if A::KIND != Kind::Extend => record::bind_changes(query, &changes),
        _ => query,
    }
}

fn column<'q, A, T>(part: &[Placed<'q, A>], value: impl Fn(&'q A) -> T) -> Vec<T> {
    part.iter().map(|placed| value(placed.action)).collect()
}

impl ByStatement for Extend {
    const KIND: Kind = Kind::Extend;

    fn of(action: &Action) -> Option<&Self> {
        match action {
            Action::Extend(extend) => Some(extend),
            _ => None,
        }
    }

    fn statements(sql: &Sql, _recorded: bool) -> &Statements {
        &sql.extend
    }

    fn bind_one<'q>(&'q self, query: Statement<'q>) -> Statement<'q> {
        let to = self.handed_over.as_ref();
        query
            .bind(count(self))
            .bind(micros(self.ttl))
            .bind(to.map(|to| to.owner))
            .bind(to.map(holder))
            .bind(to.map(|to| to.fence_token))
    }

    fn bind_many<'q>(part: &[Placed<'q, Self>], query: Statement<'q>) -> Statement<'q> {
        let to = |extend: &'q Self| extend.handed_over.as_ref();
        query
            .bind(column(part, count))
            .bind(column(part, |extend| micros(extend.ttl)))
            .bind(column(part, |extend| to(extend).map(|to| to.owner)))
            .bind(column(part, |extend| to(extend).map(holder)))
            .bind(column(part, |extend| to(extend).map(|to| to.fence_token)))
    }
}

fn count(extend: &Extend) -> i32 {
    i32::try_from(extend.count).unwrap_or(i32::MAX)
}

fn holder(to: &HandedOver) -> &str {
    &to.holder
}

/// [`Action::Release`].
struct Release;

impl ByStatement for Release {
    const KIND: Kind = Kind::Release;

    fn of(action: &Action) -> Option<&Self> {
        matches!(action, Action::Release).then_some(&Self)
    }

    fn statements(sql: &Sql, recorded: bool) -> &Statements {
        if recorded {
            &sql.release_recorded
        } else {
            &sql.release
        }
    }

    fn bind_one<'q>(&'q self, query: Statement<'q>) -> Statement<'q> {
        query
    }

    fn bind_many<'q>(_part: &[Placed<'q, Self>], query: Statement<'q>) -> Statement<'q> {
        query
    }
}

impl ByStatement for Acquire {
    const KIND: Kind = Kind::Acquire;

    fn of(action: &Action) -> Option<&Self> {
        match action {
            Action::Acquire(acquire) => Some(acquire),
            _ => None,
        }
    }

    fn statements(sql: &Sql, recorded: bool) -> &Statements {
        if recorded {
            &sql.acquire_recorded
        } else {
            &sql.acquire
        }
    }

    fn bind_one<'q>(&'q self, query: Statement<'q>) -> Statement<'q> {
        query
            .bind(self.owner)
            .bind(micros(self.ttl))
            .bind(&*self.holder)
            .bind(i64::from(self.spare_tokens))
    }

    fn bind_many<'q>(part: &[Placed<'q, Self>], query: Statement<'q>) -> Statement<'q> {
        query
            .bind(column(part, |acquire| acquire.owner))
            .bind(column(part, |acquire| micros(acquire.ttl)))
            .bind(column(part, |acquire| &*acquire.holder))
            .bind(column(part, |acquire| acquire.wanted_for.map(micros)))
            .bind(column(part, |acquire| i64::from(acquire.spare_tokens)))
            .bind(column(part, |acquire| acquire.queue.map(micros)))
    }
}

impl ByStatement for Transfer {
    const KIND: Kind = Kind::Acquire;

    fn of(action: &Action) -> Option<&Self> {
        match action {
            Action::Transfer(transfer) => Some(transfer),
            _ => None,
        }
    }

    fn statements(sql: &Sql, _recorded: bool) -> &Statements {
        &sql.transfer
    }

    /// There is no statement for one row.
    fn bind_one<'q>(&'q self, query: Statement<'q>) -> Statement<'q> {
        query
    }

    fn bind_many<'q>(part: &[Placed<'q, Self>], query: Statement<'q>) -> Statement<'q> {
        query
            .bind(column(part, |transfer| transfer.to))
            .bind(column(part, |transfer| transfer.owner))
            .bind(column(part, |transfer| micros(transfer.ttl)))
            .bind(column(part, |transfer| &*transfer.holder))
    }
}
