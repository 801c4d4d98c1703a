//! The three actions: their statements and parameters.

use std::sync::Arc;

use super::record;
use super::sql::{Sql, Statements};
use super::statement::Statement;
use crate::store::RecordChange;
use crate::store::clock::micros;
use crate::store::{Acquire, Action, Extend, HandedOver, Kind, Request};

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
    /// `None` for another action.
    pub(super) fn new(place: usize, request: &'a Request) -> Option<Self> {
        A::of(&request.action).map(|action| Self {
            place,
            request,
            action,
        })
    }

    /// Whether the request changes no record, or inserts one.
    pub(super) fn inserts(self) -> bool {
        matches!(
            self.request.record.as_deref(),
            None | Some(RecordChange::Insert(_))
        )
    }
}

/// The statement for one row in its usual state.
pub(super) fn one<'q, A: ByStatement>(text: &Arc<str>, placed: Placed<'q, A>) -> Statement<'q> {
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
pub(super) fn many<'q, A: ByStatement>(text: &Arc<str>, part: &[Placed<'q, A>]) -> Statement<'q> {
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
pub(super) struct Release;

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
