//! Records that change in the transaction of a request: a run begins with the grant of its lock, and a
//! release takes that back. A store that keeps no records passes.

use std::time::Duration;

use dblock_core::Key;
use dblock_core::LockRow;
use dblock_core::store::clock::Timestamp;
use dblock_core::store::rules::{CarriedOut, RecordEffect, carry_out, change_record};
use dblock_core::store::{
    Action, Outcome, Record, RecordChange, RecordEntry, RecordState, RecordVersion, Records, Released,
    Request, Store,
};

use super::AnyFixture;
use super::context::{Asker, LONG, SHORT, batch, changed, existing, granted, one, row, until_not_held};
use super::record::{self, entry};

fn begun(attempts: u32) -> RecordEntry {
    entry(RecordState::Processing, RecordEntry::OF_THE_LEASE, attempts)
}

fn failed(attempts: u32, fence_token: i64) -> RecordEntry {
    RecordEntry {
        error: Some("it's \u{1f510} \\ $1 ? {}".into()),
        ..entry(RecordState::Failed, fence_token, attempts)
    }
}

async fn read(store: &dyn Store, key: &Key) -> Option<Record> {
    record::read(store.records().expect("checked at the begin"), key).await
}

async fn write(records: &dyn Records, key: &Key, change: RecordChange) {
    assert!(record::change(records, key, change).await);
}

/// The version of a record, if there is one.
async fn version(store: &dyn Store, key: &Key) -> Option<RecordVersion> {
    read(store, key).await.as_ref().map(Record::version)
}

#[track_caller]
fn recorded(outcome: &Outcome) -> (i64, bool) {
    match outcome {
        Outcome::Granted {
            fence_token,
            recorded,
            ..
        } => (*fence_token, *recorded),
        other => panic!("{other:?} instead of Granted"),
    }
}

/// The acquire that is granted begins a record, with the token of its lease; no other acquire does.
pub async fn record_begins_with_the_grant(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let Some(records) = store.records() else { return };
    let first = Asker::new("begins");
    let insert = RecordChange::Insert(begun(1));
    let outcome = one(&*store, first.acquire(LONG).with_record(insert.clone())).await;
    let (fence_token, done) = recorded(&outcome);
    assert!(done, "{outcome:?}");
    let version = RecordVersion {
        fence_token,
        ..begun(1).version()
    };
    let record = read(&*store, &first.key).await.expect("it was begun");
    assert_eq!(
        (record.version(), record.finished_at),
        (version, Timestamp::EPOCH)
    );

    let busy = Asker::new("begins");
    let replace = RecordChange::Replace(version, begun(2));
    let outcome = one(&*store, busy.acquire(LONG).with_record(replace.clone())).await;
    assert!(matches!(outcome, Outcome::Busy(_)), "{outcome:?}");
    assert_eq!(self::version(&*store, &first.key).await, Some(version));

    one(&*store, first.release()).await;
    let outcome = one(&*store, busy.acquire(LONG).with_record(insert)).await;
    assert!(!recorded(&outcome).1, "there is a record: {outcome:?}");
    assert_eq!(self::version(&*store, &first.key).await, Some(version));

    one(&*store, busy.release()).await;
    write(
        records,
        &first.key,
        RecordChange::Replace(version, failed(1, fence_token)),
    )
    .await;
    let third = Asker::new("begins");
    let version = failed(1, fence_token).version();
    let replace = RecordChange::Replace(version, begun(2));
    let outcome = one(&*store, third.acquire(LONG).with_record(replace)).await;
    let (fence_token, done) = recorded(&outcome);
    assert!(done, "{outcome:?}");
    let record = read(&*store, &first.key).await.expect("it was begun again");
    assert_eq!((record.attempts, record.fence_token), (2, fence_token));
    assert_eq!((record.error, record.finished_at), (None, Timestamp::EPOCH));
}

/// A release takes back what its lease began, even if the lease has expired or is passed on, and nothing else.
pub async fn record_is_taken_back_with_the_release(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let Some(records) = store.records() else { return };
    let mut of_lease = begun(1).version();
    let delete = RecordChange::Delete(of_lease);
    let begin = RecordChange::Insert(begun(1));

    let free = Asker::new("taken back");
    granted(&*store, free.acquire(LONG).with_record(begin.clone())).await;
    assert!(read(&*store, &free.key).await.is_some());
    one(&*store, free.release().with_record(delete.clone())).await;
    assert_eq!(read(&*store, &free.key).await, None);

    let passing = Asker::new("taken back, and passed on");
    granted(&*store, passing.acquire(LONG).with_record(begin.clone())).await;
    one(
        &*store,
        Asker::new("taken back, and passed on").queue(Duration::ZERO),
    )
    .await;
    let released = one(&*store, passing.release().with_record(delete.clone())).await;
    assert!(matches!(released, Outcome::Released(Released::PassedOn)));
    assert_eq!(read(&*store, &passing.key).await, None);

    let expired = Asker::new("taken back, and expired");
    granted(&*store, expired.acquire(SHORT).with_record(begin.clone())).await;
    until_not_held(&*store, &expired.key).await;
    let released = one(&*store, expired.release().with_record(delete.clone())).await;
    assert_eq!(released, Outcome::Lost);
    assert_eq!(read(&*store, &expired.key).await, None);

    let freed = Asker::new("taken back, and freed before");
    granted(&*store, freed.acquire(LONG).with_record(begin.clone())).await;
    one(&*store, freed.release()).await;
    assert!(read(&*store, &freed.key).await.is_some());
    one(&*store, freed.release().with_record(delete.clone())).await;
    assert_eq!(read(&*store, &freed.key).await, None);

    // Meanwhile another lease has begun the record, and then another attempt.
    let late = Asker::new("not taken back");
    granted(&*store, late.acquire(SHORT).with_record(begin.clone())).await;
    until_not_held(&*store, &late.key).await;
    let next = Asker::new("not taken back");
    let token = granted(&*store, next.acquire(LONG)).await.fence_token;
    let before = version(&*store, &late.key).await;
    assert_eq!(
        one(&*store, late.release().with_record(delete.clone())).await,
        Outcome::Lost
    );
    assert_eq!(
        version(&*store, &late.key).await,
        before,
        "the row is another one's"
    );
    one(&*store, next.release().with_record(delete.clone())).await;
    assert_eq!(
        version(&*store, &late.key).await,
        before,
        "the record is another one's"
    );

    // The former failure is back.
    of_lease.attempts = 2;
    let again = Asker::new("fails again");
    write(records, &again.key, RecordChange::Insert(failed(1, token))).await;
    let begin = RecordChange::Replace(failed(1, token).version(), begun(2));
    let (token, _) = recorded(&one(&*store, again.acquire(LONG).with_record(begin)).await);
    let undo = RecordChange::Replace(of_lease, failed(1, RecordEntry::OF_THE_LEASE));
    one(&*store, again.release().with_record(undo)).await;
    let record = read(&*store, &again.key).await.expect("it failed once");
    assert_eq!(record.version(), failed(1, token).version());
    assert_eq!(record.error, failed(1, 1).error);
}

/// A batch of new and old keys, with records and without.
pub async fn record_of_each_key_of_a_batch_is_begun(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    if store.records().is_none() {
        return;
    }
    let askers: Vec<_> = (0..12)
        .map(|n| Asker::new(&format!("batch of records {n}")))
        .collect();
    let ask = |asker: &Asker, n: usize| {
        let acquire = asker.acquire(LONG);
        match n % 3 {
            0 => acquire,
            _ => acquire.with_record(RecordChange::Insert(begun(1))),
        }
    };
    // The first round inserts rows. The second one finds rows and records.
    for round in 0..2 {
        let askers: Vec<_> = askers
            .iter()
            .map(|asker| Asker::new(asker.key.as_str()))
            .collect();
        let requests: Vec<_> = askers
            .iter()
            .enumerate()
            .map(|(n, asker)| ask(asker, n))
            .collect();
        let outcomes = batch(&*store, &requests).await;
        for (n, (asker, outcome)) in askers.iter().zip(&outcomes).enumerate() {
            let (token, done) = recorded(outcome);
            let begins = n % 3 == 1 || n % 3 == 2 && round == 0;
            assert_eq!(done, begins, "round {round}, key {n}");
            let found = version(&*store, &asker.key).await;
            assert_eq!(found.is_some(), n % 3 != 0, "round {round}, key {n}");
            assert!(!begins || found.is_some_and(|version| version.fence_token == token));
        }
        let release = |(n, asker): (usize, &Asker)| match n % 3 {
            1 => asker
                .release()
                .with_record(RecordChange::Delete(begun(1).version())),
            _ => asker.release(),
        };
        let releases: Vec<_> = askers.iter().enumerate().map(release).collect();
        for outcome in batch(&*store, &releases).await {
            assert_eq!(outcome, Outcome::Released(Released::Freed));
        }
        for (n, asker) in askers.iter().enumerate() {
            assert_eq!(
                version(&*store, &asker.key).await.is_some(),
                n % 3 == 2,
                "round {round}, key {n}"
            );
        }
    }
}

/// Random requests with random changes, each compared with the rules.
pub async fn record_changes_with_requests_by_the_rules(fixture: &dyn AnyFixture) {
    let stores = [fixture.store().await, fixture.store().await];
    if stores[0].records().is_none() {
        return;
    }
    let askers: Vec<_> = (0..6)
        .map(|n| Asker::new(&format!("random with lock {}", n % 2)))
        .collect();
    let mut done = 0;
    for step in 0..300 {
        let store = &*stores[fastrand::usize(..2)];
        let asker = &askers[fastrand::usize(..askers.len())];
        let before = row(store, &asker.key).await;
        let record = read(store, &asker.key).await;
        let request = random(asker, before.as_ref(), record.as_ref());
        let mut ruled = before.unwrap_or_else(|| LockRow::new(asker.key.clone(), Timestamp::EPOCH));
        let CarriedOut {
            outcome,
            record: change,
            ..
        } = carry_out(&request, &mut ruled).expect("tokens are left");
        let answer = one(store, request.clone()).await;
        assert_eq!(
            std::mem::discriminant(&answer),
            std::mem::discriminant(&outcome),
            "step {step}: {request:?} was answered with {answer:?} instead of {outcome:?}"
        );
        // A new token shows the clock.
        let change = match &answer {
            Outcome::Granted { fence_token, .. } => {
                let of_lease = request.record.as_ref();
                of_lease.map(|change| change.of_lease(*fence_token))
            }
            _ => change,
        };
        let now = record
            .as_ref()
            .map_or(Timestamp::from_micros(1), |record| record.now);
        let effect = change.map_or(RecordEffect::Nothing, |change| {
            change_record(&asker.key, &change, record.as_ref(), now)
        });
        let written = effect != RecordEffect::Nothing;
        if let Outcome::Granted { recorded, .. } = answer {
            assert_eq!(recorded, written, "step {step}: {request:?} on {record:?}");
        }
        done += usize::from(written);
        let left = effect.left(record);
        let found = read(store, &asker.key).await;
        assert_eq!(
            left.as_ref().map(timeless),
            found.as_ref().map(timeless),
            "step {step}: {request:?}"
        );
        if let Some(row) = row(store, &asker.key).await {
            let now = ruled.now;
            assert_eq!(
                changed(row, |row| row.now = now).is_held(),
                ruled.is_held(),
                "step {step}"
            );
        }
    }
    assert!(done > 8, "{done} changes");
    let _ = existing(&*stores[0], &askers[0].key).await;
}

/// A record without the times of its last write.
fn timeless(record: &Record) -> (RecordVersion, Option<String>, Option<String>, bool) {
    let ended = record.finished_at != Timestamp::EPOCH;
    (
        record.version(),
        record.result.clone(),
        record.error.clone(),
        ended,
    )
}

/// Half of the requests come from the holder, and half of the changes expect the right version.
fn random(asker: &Asker, row: Option<&LockRow>, record: Option<&Record>) -> Request {
    let states = [
        RecordState::Processing,
        RecordState::Succeeded,
        RecordState::Failed,
    ];
    let request = if fastrand::bool() {
        asker.acquire(LONG)
    } else {
        asker.release()
    };
    // A fresh lease for each acquire, as the engine does.
    let lease_id = match &request.action {
        Action::Acquire(_) => Asker::new("fresh").lease_id,
        _ => row
            .filter(|_| fastrand::u8(..4) > 0)
            .map_or(asker.lease_id, |row| row.lease_id),
    };
    let mut request = Request::new(asker.key.clone(), lease_id, request.action);
    if fastrand::u8(..8) == 0 {
        return request;
    }
    let token = |known: Option<i64>| match fastrand::u8(..4) {
        0 => 1,
        1 => RecordEntry::OF_THE_LEASE,
        _ => known.unwrap_or(1),
    };
    let mut new = failed(
        fastrand::u32(1..3),
        token(record.map(|record| record.fence_token)),
    );
    new.state = states[fastrand::usize(..3)];
    new.keep = [Duration::ZERO, LONG][fastrand::usize(..2)];
    new.result = fastrand::bool().then(|| "null".to_owned());
    let mut expected = record.map_or(begun(1).version(), Record::version);
    if fastrand::u8(..4) == 0 {
        expected.state = states[fastrand::usize(..3)];
    }
    if row.is_some_and(|row| row.fence_token == expected.fence_token) || fastrand::u8(..4) == 0 {
        expected.fence_token = token(Some(expected.fence_token));
    }
    request = request.with_record(match fastrand::u8(..4) {
        0 => RecordChange::Insert(new),
        1 => RecordChange::Delete(expected),
        _ => RecordChange::Replace(expected, new),
    });
    request
}
