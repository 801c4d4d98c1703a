//! Random takes of random rows: a transaction takes and writes what [`take`] does.

use dblock::fence::{Database, FenceConnection, take_on};
use dblock_core::store::StoreErrorKind;
use dblock_core::store::clock::Timestamp;
use dblock_core::store::rules::{Sees, Take, Took, take};
use dblock_core::{Key, LockRow};
use uuid::Uuid;

use super::super::context::{changed, key};
use super::{PREFIX, Run, comparable, steps};
use crate::{End, FenceFixture};

/// As [`random_requests_are_carried_out_by_the_rules`](super::random_requests_are_carried_out_by_the_rules), for
/// transactions of a database that takes keys in them. Not in `fence_conformance!`, because the fixture must place rows.
#[doc(hidden)]
pub async fn random_takes_are_carried_out_by_the_rules(fixture: &impl FenceFixture) {
    steps(fixture, async |run| run.take().await).await;
}

impl<F: FenceFixture> Run<'_, F> {
    async fn take(&mut self) {
        let absent = key(&format!("{PREFIX} absent"));
        let is_absent = self.random.one_in(16);
        let key = if is_absent {
            absent
        } else {
            self.random.one_of(&self.keys).clone()
        };
        if !is_absent && self.random.one_in(2) {
            self.place(&key).await;
        }
        let ask = Take {
            lease_id: Uuid::now_v7(),
            owner: Uuid::now_v7(),
            holder: "a 'taker' \\ \u{1f512}".into(),
            sees: Sees::Newest,
        };
        let (own, end) = (
            self.random.one_in(2),
            *self.random.one_of(&[End::Commit, End::Rollback]),
        );
        let is_older = !is_absent && self.random.one_in(3);
        let fixture = self.fixture;
        let mut told = None;
        let body = async |transaction: &mut dyn FenceConnection| {
            let mut ask = ask.clone();
            let mut seen = None;
            if is_older {
                let first = take_on(&*self.stores[0], transaction, &clock(), &ask, own).await;
                assert_eq!(
                    first.expect("an answer"),
                    Took::Held,
                    "it is the first read, and locks nothing"
                );
                seen = self.seen.rows.get(&key).cloned();
                self.place(&key).await;
            }
            // By the databases' defaults.
            if transaction.database() == Database::MySql && is_older {
                ask.sees = Sees::FirstSeen;
            } else {
                seen = self.seen.rows.get(&key).cloned();
            }
            let store = &*self.stores[0];
            let answer = take_on(store, transaction, &key, &ask, own).await;
            if matches!(answer, Ok(Took::Taken(_))) {
                let others = async |other: &mut dyn FenceConnection| {
                    let answer = take_on(store, other, &key, &ask, own).await;
                    assert_eq!(answer.expect("an answer"), Took::Skipped, "in {}", self.title);
                    End::Rollback
                };
                fixture.transaction(others).await;
            }
            let end = if answer.is_ok() { end } else { End::Rollback };
            told = Some((ask, seen, answer, end));
            end
        };
        fixture.transaction(body).await;
        let (ask, seen, answer, end) = told.expect("the body has run");
        let (before, times) = self.look_again().await;
        let mut clocks = vec![times.0, times.1];
        if let Ok(Took::Taken(token)) = answer {
            clocks.push(Timestamp::from_micros(token));
            clocks.retain(|clock| (times.0..=times.1).contains(clock));
        }
        let fits = |&now: &Timestamp| {
            let at = |row: &LockRow| changed(row.clone(), |it| it.now = now);
            let mut newest = before.get(&key).map(at);
            let expected = take(&ask, seen.as_ref().map(at).as_ref(), || newest.as_mut());
            let mut after = before.clone();
            if end == End::Commit {
                after.extend(newest.map(|row| {
                    (
                        key.clone(),
                        comparable(changed(row, |it| it.now = Timestamp::EPOCH)),
                    )
                }));
            }
            let answered = match (&answer, expected) {
                (Ok(Took::Ahead(told)), Took::Ahead(ahead)) => told.abs_diff(ahead) <= times.1.since(times.0),
                (Ok(answer), expected) => *answer == expected,
                // Some servers refuse an old snapshot by themselves.
                (Err(error), _) => ask.sees == Sees::FirstSeen && error.kind() == StoreErrorKind::Conflict,
            };
            answered && after == self.seen.rows
        };
        assert!(
            clocks.iter().any(fits),
            "the store and the rules differ in {}:\n{ask:#?}\nof {key:?}, own: {own}, which showed {seen:#?}\nand was {:#?}\n\
             was answered with {answer:?}\nand left, after a {end:?}, {:#?}\nat {times:?}",
            self.title,
            before.get(&key),
            self.seen.rows.get(&key),
        );
    }

    /// Puts the row of a key into a random state, which is often one that can be taken.
    async fn place(&mut self, key: &Key) {
        let mut row = self.random.row(key, self.seen.clock);
        if self.random.one_in(2) {
            (row.reentrant_count, row.fence_token, row.fence_ceiling) = (0, 1, 1);
            row.shared.clear();
        }
        assert!(
            self.fixture.place(std::slice::from_ref(&row)).await,
            "the fixture places rows"
        );
        self.seen.rows.insert(key.clone(), row);
    }
}

/// A key that is always held.
fn clock() -> Key {
    key(&format!("{PREFIX} clock"))
}
