//! Records of runs: each write needs the version that was read, a success is final, and the outcome is written
//! together with the end of the lease. A store that keeps no records passes.

use std::time::Duration;

use dblock_core::Key;
use dblock_core::store::clock::Timestamp;
use dblock_core::store::rules::{RecordEffect, change_record};
use dblock_core::store::{
    Outcome, Record, RecordChange, RecordEntry, RecordFilter, RecordState, RecordVersion, RecordWrite,
    Records, StoreErrorKind, WriteLease,
};
use uuid::Uuid;

use super::AnyFixture;
use super::context::{Asker, LONG, SHORT, changed, existing, granted, key, one, retry, row, until_not_held};

/// How long the records of these checks are remembered: not at all, or for the whole check.
const KEEPS: [Duration; 2] = [Duration::ZERO, LONG];

const STATES: [RecordState; 3] = [
    RecordState::Processing,
    RecordState::Succeeded,
    RecordState::Failed,
];

pub(super) fn entry(state: RecordState, fence_token: i64, attempts: u32) -> RecordEntry {
    RecordEntry {
        state,
        attempts,
        fence_token,
        fingerprint: None,
        result: None,
        error: None,
        holder: "host/1 conformance::check".into(),
        keep: LONG,
    }
}

pub(super) async fn read(records: &dyn Records, key: &Key) -> Option<Record> {
    retry(|| records.read(key)).await
}

/// The record without the clock.
fn timeless(record: Option<Record>) -> Option<Record> {
    record.map(|mut record| {
        record.now = Timestamp::EPOCH;
        record
    })
}

async fn write(records: &dyn Records, write: &RecordWrite) -> bool {
    retry(|| records.write(write)).await
}

pub(super) async fn change(records: &dyn Records, key: &Key, change: RecordChange) -> bool {
    write(records, &RecordWrite::new(key.clone(), change)).await
}

/// Random writes on a few records, each compared with [`change_record`].
pub async fn record_writes_are_carried_out_by_the_rules(fixture: &dyn AnyFixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let [Some(one), Some(other)] = [stores[0].records(), stores[1].records()] else {
        return;
    };
    let keys: Vec<Key> = (0..3).map(|n| key(&format!("random record {n}"))).collect();
    let texts = [
        None,
        Some("\"it's \u{1f510} \\u0000 \\\\ $1 ? {}\"".to_owned()),
        Some("null".to_owned()),
    ];
    let (mut written, mut refused) = (0, 0);
    for step in 0..300 {
        let records = if fastrand::bool() { one } else { other };
        let key = &keys[fastrand::usize(..keys.len())];
        let mut new = entry(
            STATES[fastrand::usize(..3)],
            fastrand::i64(1..3),
            fastrand::u32(1..3),
        );
        new.keep = KEEPS[fastrand::usize(..2)];
        new.fingerprint = fastrand::bool().then(Uuid::now_v7);
        new.result.clone_from(&texts[fastrand::usize(..3)]);
        new.error.clone_from(&texts[fastrand::usize(..3)]);
        let before = read(records, key).await;
        let mut expected = before
            .as_ref()
            .map_or(entry(STATES[0], 1, 1).version(), Record::version);
        // Half of the writers expect another version, which differs in one column.
        match fastrand::u8(..6) {
            0 => expected.fence_token = 3 - expected.fence_token,
            1 => expected.attempts = 3 - expected.attempts,
            2 => expected.state = STATES[fastrand::usize(..3)],
            _ => {}
        }
        let change = match fastrand::u8(..4) {
            0 => RecordChange::Insert(new),
            1 => RecordChange::Delete(expected),
            _ => RecordChange::Replace(expected, new),
        };
        let done = write(records, &RecordWrite::new(key.clone(), change.clone())).await;
        let after = read(other, key).await;
        // The clock of the write, if the record shows it.
        let clock = after.as_ref().map_or(Timestamp::EPOCH, |record| {
            record.started_at.max(record.finished_at)
        });
        let clock = before.as_ref().map_or(clock, |before| clock.max(before.now));
        let ruled = change_record(key, &change, before.as_ref(), clock);
        let changes = ruled != RecordEffect::Nothing;
        assert_eq!(done, changes, "step {step}: {change:?} on {before:?}");
        let left = ruled.left(before);
        assert!(
            about(left.as_ref(), after.as_ref()),
            "step {step}: {change:?} left {after:?} instead of {left:?}"
        );
        if done {
            written += 1;
        } else {
            refused += 1;
        }
    }
    assert!(
        written > 20 && refused > 20,
        "{written} written, {refused} refused"
    );
}

/// Whether a record is as the rules say, but for the moment of its last write.
fn about(expected: Option<&Record>, found: Option<&Record>) -> bool {
    let (Some(expected), Some(found)) = (expected, found) else {
        return expected.is_none() && found.is_none();
    };
    let near = |a: Timestamp, b: Timestamp| {
        let apart = a.max(b).since(a.min(b));
        (a == Timestamp::EPOCH) == (b == Timestamp::EPOCH) && apart < Duration::from_mins(1)
    };
    let mut same = found.clone();
    same.started_at = expected.started_at;
    same.finished_at = expected.finished_at;
    same.keep_until = expected.keep_until;
    same.now = expected.now;
    same == *expected
        && near(expected.started_at, found.started_at)
        && near(expected.finished_at, found.finished_at)
        && near(expected.keep_until, found.keep_until)
}

/// Of two writers that have read the same version, one writes.
pub async fn record_is_written_by_one_of_two(fixture: &dyn AnyFixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let [Some(one), Some(other)] = [stores[0].records(), stores[1].records()] else {
        return;
    };
    for round in 0..10 {
        let key = key(&format!("race {round}"));
        let begin = |token| {
            RecordWrite::new(
                key.clone(),
                RecordChange::Insert(entry(RecordState::Processing, token, 1)),
            )
        };
        let begins = [begin(1), begin(2)];
        let (first, second) = tokio::join!(write(one, &begins[0]), write(other, &begins[1]));
        assert!(first != second, "round {round}: {first} and {second}");
        let winner = if first { 1 } else { 2 };
        let processing = entry(RecordState::Processing, winner, 1).version();
        let end = |state| {
            RecordWrite::new(
                key.clone(),
                RecordChange::Replace(processing, entry(state, winner, 1)),
            )
        };
        let ends = [end(RecordState::Succeeded), end(RecordState::Failed)];
        let (first, second) = tokio::join!(write(one, &ends[0]), write(other, &ends[1]));
        assert!(first != second, "round {round}: {first} and {second}");
        let state = if first {
            RecordState::Succeeded
        } else {
            RecordState::Failed
        };
        assert_eq!(read(one, &key).await.map(|record| record.state), Some(state));
    }
}

/// A write without a lease is carried out whoever holds the key, and does not change the row.
pub async fn record_without_a_lease_leaves_the_row(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let Some(records) = store.records() else { return };
    let holder = Asker::new("written beside a holder");
    let token = granted(&*store, holder.acquire(LONG)).await.fence_token;
    store
        .apply(&[Asker::new("written beside a holder").queue(Duration::ZERO)])
        .await;
    let timeless_row = async |key: &Key| {
        row(&*store, key)
            .await
            .map(|it| changed(it, |it| it.now = Timestamp::EPOCH))
    };
    for key in [holder.key.clone(), key("written without a row")] {
        let before = timeless_row(&key).await;
        for change in changes(token) {
            let record = RecordWrite::new(key.clone(), change);
            assert_eq!(record.lease, WriteLease::None);
            assert!(write(records, &record).await, "{record:?}");
            assert_eq!(timeless_row(&key).await, before, "{record:?}");
        }
    }
}

/// An insertion, a replacement and a deletion, one after the other.
fn changes(token: i64) -> [RecordChange; 3] {
    let begun = entry(RecordState::Processing, token, 1);
    let failed = entry(RecordState::Failed, token, 1);
    let [begun_version, failed_version] = [begun.version(), failed.version()];
    [
        RecordChange::Insert(begun),
        RecordChange::Replace(begun_version, failed),
        RecordChange::Delete(failed_version),
    ]
}

/// The outcome frees the row, with its successor, if the lease that it names holds it.
pub async fn record_ends_the_lease_that_it_names(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let Some(records) = store.records() else { return };
    let holder = Asker::new("ended with its record");
    let token = granted(&*store, holder.acquire(LONG)).await.fence_token;
    store
        .apply(&[Asker::new("ended with its record").queue(Duration::ZERO)])
        .await;
    let begun = entry(RecordState::Processing, token, 1);
    assert!(change(records, &holder.key, RecordChange::Insert(begun.clone())).await);

    let done = entry(RecordState::Succeeded, token, 1);
    let mut end = RecordWrite::new(
        holder.key.clone(),
        RecordChange::Replace(begun.version(), done.clone()),
    );
    let mut of_another = end.clone();
    of_another.change = RecordChange::Replace(
        RecordVersion {
            attempts: 2,
            ..begun.version()
        },
        done.clone(),
    );
    of_another.lease = WriteLease::Ends(holder.lease_id);
    assert!(!write(records, &of_another).await);
    assert!(
        existing(&*store, &holder.key).await.is_held(),
        "the record was not written"
    );

    end.lease = WriteLease::Ends(holder.lease_id);
    assert!(write(records, &end).await);
    let row = existing(&*store, &holder.key).await;
    assert!(!row.is_held() && row.next.is_none(), "{row:?}");
    assert_eq!((row.fence_token, row.lease_id), (token, holder.lease_id));

    let next = Asker::new("ended with its record");
    granted(&*store, next.acquire(LONG)).await;
    assert!(change(records, &holder.key, RecordChange::Delete(done.version())).await);
    assert!(change(records, &holder.key, RecordChange::Insert(begun)).await);
    assert!(write(records, &end).await, "success needs no live lease");
    assert!(
        existing(&*store, &holder.key).await.is_held(),
        "the row is another one's"
    );
    end.lease = WriteLease::Ends(next.lease_id);
    for change in [RecordChange::Delete(done.version()), changes(token)[0].clone()] {
        end.change = change;
        assert!(write(records, &end).await, "{end:?}");
        assert!(
            existing(&*store, &holder.key).await.is_held(),
            "only a replacement ends a lease: {end:?}"
        );
    }
}

/// A write that needs a lease changes nothing unless that lease is live.
pub async fn record_is_written_under_the_lease_that_it_needs(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let Some(records) = store.records() else { return };
    let holder = Asker::new("written under a lease");
    let token = granted(&*store, holder.acquire(LONG)).await.fence_token;
    let under = |change, lease_id| RecordWrite::under(holder.key.clone(), change, lease_id);
    let changes = changes(token);
    for change in &changes {
        let before = timeless(read(records, &holder.key).await);
        assert!(
            !write(records, &under(change.clone(), Uuid::now_v7())).await,
            "{change:?}"
        );
        assert_eq!(timeless(read(records, &holder.key).await), before);
        assert!(
            write(records, &under(change.clone(), holder.lease_id)).await,
            "{change:?}"
        );
        assert!(
            !write(records, &under(change.clone(), holder.lease_id)).await,
            "twice: {change:?}"
        );
        assert!(existing(&*store, &holder.key).await.is_held(), "it ends no lease");
    }
    one(&*store, holder.release()).await;
    assert!(
        !write(records, &under(changes[0].clone(), holder.lease_id)).await,
        "released"
    );

    let expired = Asker::new("written under an expired lease");
    let insert = RecordWrite::under(expired.key.clone(), changes[0].clone(), expired.lease_id);
    assert!(!write(records, &insert).await, "it has no row");
    granted(&*store, expired.acquire(SHORT)).await;
    until_not_held(&*store, &expired.key).await;
    assert!(!write(records, &insert).await, "expired");
}

/// Writes that need a lease, beside the release of that lease: when both have ended, no record is left.
pub async fn record_is_not_written_after_its_lease_was_released(fixture: &dyn AnyFixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let Some(records) = stores[0].records() else {
        return;
    };
    for round in 0..100 {
        let holder = Asker::new(&format!("begun beside its release {round}"));
        let token = granted(&*stores[1], holder.acquire(LONG)).await.fence_token;
        let written = entry(RecordState::Processing, token, 1);
        let begin = RecordWrite::under(
            holder.key.clone(),
            RecordChange::Insert(written.clone()),
            holder.lease_id,
        );
        let undo = RecordChange::Delete(written.version());
        // The write is repeated while the release has the row locked.
        let write = async {
            loop {
                match records.write(&begin).await {
                    Err(error) if error.is_retryable() && !error.is_outcome_unknown() => {}
                    answer => break answer.expect("the store answers"),
                }
            }
        };
        let release = async {
            while one(&*stores[1], holder.release().with_record(undo.clone())).await == Outcome::Skipped {}
        };
        tokio::join!(write, release);
        assert_eq!(read(records, &holder.key).await, None, "round {round}");
    }
}

/// A success is not replaced while it is remembered, and it can be deleted.
pub async fn record_of_a_success_is_final(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let Some(records) = store.records() else { return };
    let key = key("final");
    let done = entry(RecordState::Succeeded, 1, 1);
    assert!(change(records, &key, RecordChange::Insert(done.clone())).await);
    let before = timeless(read(records, &key).await);
    for (state, token) in [
        (RecordState::Processing, 2),
        (RecordState::Failed, 2),
        (RecordState::Succeeded, 1),
    ] {
        let again = RecordChange::Replace(done.version(), entry(state, token, 1));
        assert!(!change(records, &key, again).await, "{state:?}");
        assert_eq!(timeless(read(records, &key).await), before);
    }
    // Another success with a larger token corrects it, and a third corrects that one.
    let mut corrected = entry(RecordState::Succeeded, 2, 1);
    corrected.result = Some("2".into());
    assert!(
        change(
            records,
            &key,
            RecordChange::Replace(done.version(), corrected.clone())
        )
        .await
    );
    let late = RecordChange::Replace(done.version(), entry(RecordState::Succeeded, 3, 1));
    assert!(
        !change(records, &key, late).await,
        "of the version that was corrected"
    );
    let found = read(records, &key).await.expect("it is there");
    assert_eq!(
        (found.version(), found.result.as_deref()),
        (corrected.version(), Some("2"))
    );
    assert!(change(records, &key, RecordChange::Delete(corrected.version())).await);
    assert_eq!(read(records, &key).await, None);
    let over = RecordEntry {
        keep: Duration::ZERO,
        ..done.clone()
    };
    assert!(change(records, &key, RecordChange::Insert(over)).await);
    assert!(
        change(
            records,
            &key,
            RecordChange::Replace(done.version(), entry(RecordState::Processing, 2, 1))
        )
        .await
    );
}

/// Records that are read together are the same as read alone, in the order of the keys.
pub async fn records_are_read_together_as_alone(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let Some(records) = store.records() else { return };
    let [absent, one, other] = ["read:absent", "read:z%'", "read:a"].map(key);
    for (n, key) in [&one, &other].into_iter().enumerate() {
        let mut entry = entry(STATES[n], 7, 1);
        entry.result = Some(n.to_string());
        assert!(change(records, key, RecordChange::Insert(entry)).await);
    }
    let keys = [absent.clone(), one.clone(), other.clone(), absent, one.clone()];
    let mut alone = Vec::new();
    for key in &keys {
        alone.push(timeless(read(records, key).await));
    }
    assert_eq!(alone.iter().flatten().count(), 3);
    let together = retry(|| Box::pin(async { records.read_all(&keys).await.into_iter().collect() })).await;
    let together: Vec<_> = Vec::into_iter(together).map(timeless).collect();
    assert_eq!(together, alone);
}

/// Records are listed by prefix and state, in the order of their keys.
pub async fn records_are_listed_by_prefix_and_state(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let Some(records) = store.records() else { return };
    for (name, state) in [
        ("list:b", RecordState::Failed),
        ("list:a", RecordState::Succeeded),
        ("list%c", RecordState::Failed),
        ("lisT:d", RecordState::Failed),
    ] {
        assert!(change(records, &key(name), RecordChange::Insert(entry(state, 1, 1))).await);
    }
    let list = async |filter: RecordFilter| {
        let found = retry(|| records.list(&filter)).await;
        found
            .iter()
            .map(|record| record.key.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        list(RecordFilter::new().prefix("list:")).await,
        ["list:a", "list:b"]
    );
    assert_eq!(
        list(RecordFilter::new().prefix("list").limit(2)).await,
        ["list%c", "list:a"]
    );
    let failed = RecordFilter::new().prefix("lis").state(RecordState::Failed);
    assert_eq!(list(failed).await, ["lisT:d", "list%c", "list:b"]);
}

/// A purge deletes records that are no longer remembered, in steps, and none that is processing.
pub async fn purge_of_records_spares_what_is_processing(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let Some(records) = store.records() else { return };
    for (n, state) in STATES.into_iter().chain(STATES).enumerate() {
        let new = RecordEntry {
            keep: KEEPS[n / 3],
            ..entry(state, 1, 1)
        };
        assert!(change(records, &key(&format!("purge {n}")), RecordChange::Insert(new)).await);
    }
    let (mut gone, mut after) = (0, None);
    loop {
        let step = retry(|| records.purge(after.as_ref(), 2)).await;
        assert!(step.rows <= 2, "{step:?}");
        gone += step.rows;
        match step.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let filter = RecordFilter::new().prefix("purge ");
    let left = retry(|| records.list(&filter)).await;
    let left: Vec<_> = left.iter().map(|record| record.key.as_str()).collect();
    assert_eq!(left, ["purge 0", "purge 3", "purge 4", "purge 5"]);
    assert_eq!(gone, 2);
}

/// Where the tables are missing, the error says how they are made, and a purge has nothing to do.
pub async fn missing_records_name_the_remedy(fixture: &dyn AnyFixture) {
    let Some(store) = fixture.bare().await else { return };
    let Some(records) = store.records() else { return };
    let key = key("a");
    let error = records.read(&key).await.expect_err("there is no table");
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("locks.admin().migrate()"), "{error}");
    let begin = RecordWrite::new(key, RecordChange::Insert(entry(RecordState::Processing, 1, 1)));
    let error = records.write(&begin).await.expect_err("there is no table");
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    assert_eq!(retry(|| records.purge(None, 10)).await.rows, 0);
}
