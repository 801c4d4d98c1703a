//! Random requests on random rows: the store answers and writes what [`rules`](dblock_core::store::rules) do.
//!
//! Each step puts some rows into random states, sends a request for each, alone or in a batch, and reads all
//! rows. The rules then carry out the same requests on the former rows. The only unknown is the clock at which
//! the store carried a request out: it lies between two readings, and most writes show it.

mod random;
#[cfg(feature = "fence")]
mod takes;

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dblock_core::store::clock::Timestamp;
use dblock_core::store::rules::carry_out;
use dblock_core::store::{Action, Outcome, Request, Store, StoreError, StoreErrorKind};
use dblock_core::{InspectFilter, Key, LockRow};

use self::random::Random;
#[cfg(feature = "fence")]
pub use self::takes::*;
use super::AnyFixture;
use super::context::{Asker, changed, force_release, granted, key, retry, revoke, within};

/// A run takes at least so many steps, and lasts for at least [`SOME_TIME`].
const STEPS: usize = 200;

const SOME_TIME: Duration = Duration::from_secs(3);

/// The most steps of a run.
const MOST_STEPS: usize = 3_000;

/// A step sends one request, or one for each key.
const KEYS: usize = 8;

/// The prefix of the keys of this check.
const PREFIX: &str = "random";

type Answer = Result<Outcome, StoreError>;

/// Hundreds of random steps, each compared with the rules. Leaves out stores without a clock and stores whose
/// rows end with their leases: their rows differ from those of the rules. The environment variable
/// `DBLOCK_TEST_SEED` repeats the steps of a failed run.
pub async fn random_requests_are_carried_out_by_the_rules(fixture: &dyn AnyFixture) {
    if fixture.one_row() {
        steps(fixture, async |run| run.step().await).await;
    }
}

async fn steps<F: AnyFixture + ?Sized>(fixture: &F, takes_step: impl AsyncFn(&mut Run<'_, F>)) {
    let repeated = std::env::var("DBLOCK_TEST_SEED").ok();
    let repeated = repeated.map(|seed| seed.parse().expect("DBLOCK_TEST_SEED is a number"));
    let seed = repeated.unwrap_or_else(|| fastrand::u64(..));
    let stores = [fixture.store().await, fixture.store().await];
    let can = stores[0].capabilities();
    if !(can.clock && can.former_leases && can.queues) {
        return;
    }
    // A row that is always there, so that reading shows the clock.
    let clock = Asker::new(&format!("{PREFIX} clock"));
    granted(&*stores[0], clock.acquire(Duration::from_hours(1))).await;
    let mut run = Run {
        fixture,
        seen: look(&*stores[0]).await,
        stores,
        random: Random::new(seed, can.shares),
        keys: (0..KEYS).map(|n| key(&format!("{PREFIX} {n}"))).collect(),
        title: String::new(),
    };
    let started = Instant::now();
    for step in 0..MOST_STEPS {
        if repeated.is_none() && step >= STEPS && started.elapsed() > SOME_TIME {
            break;
        }
        run.title = format!("step {step} (DBLOCK_TEST_SEED={seed} repeats it)");
        takes_step(&mut run).await;
    }
}

struct Run<'f, F: ?Sized> {
    fixture: &'f F,
    stores: [Arc<dyn Store>; 2],
    random: Random,
    keys: Vec<Key>,
    seen: Seen,
    title: String,
}

/// All rows, without their clocks, and the clock when they were read.
struct Seen {
    rows: Rows,
    clock: Timestamp,
}

type Rows = BTreeMap<Key, LockRow>;

impl<F: AnyFixture + ?Sized> Run<'_, F> {
    async fn step(&mut self) {
        let mut keys = self.random.some_of(&self.keys);
        let mut placed = Vec::new();
        for key in &keys {
            if self.random.one_in(2) {
                placed.push(self.random.row(key, self.seen.clock));
            }
        }
        // If the fixture places no rows, the rows are those of former requests.
        if self.fixture.place(&placed).await {
            let placed = placed.into_iter().map(|row| (row.key.clone(), row));
            self.seen.rows.extend(placed);
        }
        if self.random.one_in(8) {
            self.operate(keys.swap_remove(0)).await;
        } else {
            self.ask(&keys).await;
        }
    }

    /// Reads the rows again. Returns the former rows, and the clocks before and after the change.
    async fn look_again(&mut self) -> (Rows, (Timestamp, Timestamp)) {
        let after = look(&*self.stores[0]).await;
        let before = std::mem::replace(&mut self.seen, after);
        (before.rows, (before.clock, self.seen.clock))
    }

    async fn ask(&mut self, keys: &[Key]) {
        let seen = &self.seen;
        let request = |key: &Key| self.random.request(key, seen.rows.get(key), seen.clock);
        let requests: Vec<Request> = keys.iter().map(request).collect();
        let answers = answers(&**self.random.one_of(&self.stores), &requests).await;
        let (mut before, times) = self.look_again().await;
        let mut all_after = self.seen.rows.clone();
        for (request, answer) in requests.into_iter().zip(answers) {
            let row = before.remove(&request.key);
            let after = all_after.remove(&request.key);
            let fits =
                |now: &Timestamp| is_explained(*now, times, &request, row.as_ref(), &answer, after.as_ref());
            if !clocks(&request, times, after.as_ref()).iter().any(fits) {
                let mut expected = row
                    .clone()
                    .unwrap_or_else(|| LockRow::new(request.key.clone(), Timestamp::EPOCH));
                expected.now = times.1;
                let answered = carry_out(&request, &mut expected);
                panic!(
                    "the store and the rules differ in {}:\n{request:#?}\non {row:#?}\nwas answered with \
                     {answer:#?}\nand left {after:#?}\nThe rules say, at {:?}: {answered:#?}\nand leave {expected:#?}",
                    self.title, times.1
                );
            }
        }
        assert_eq!(before, all_after, "another row changed in {}", self.title);
    }

    /// Revokes or frees by force.
    async fn operate(&mut self, key: Key) {
        let store = Arc::clone(self.random.one_of(&self.stores));
        let frees = self.random.one_in(2);
        let found = if frees {
            force_release(&*store, &key).await
        } else {
            revoke(&*store, &key).await
        };
        let (mut expected, times) = self.look_again().await;
        let row = expected.get_mut(&key);
        let ends = row
            .as_ref()
            .filter(|row| row.reentrant_count > 0)
            .map(|row| row.expire_at);
        // The lease may have ended meanwhile.
        let fits = [times.0, times.1].map(|now| found == ends.is_some_and(|end| end > now));
        assert!(
            fits.contains(&true),
            "{key:?} was found: {found}, in {}: {row:#?}",
            self.title
        );
        if let Some(row) = row.filter(|_| found) {
            if frees {
                let fresh = self.seen.rows[&key].lease_id;
                assert_ne!(row.lease_id, fresh, "{}", self.title);
                row.lease_id = fresh;
                row.reentrant_count = 0;
                row.next = None;
                row.shared.clear();
            } else {
                row.revoked = true;
            }
        }
        assert_eq!(
            self.seen.rows, expected,
            "{key:?}, by force: {frees}, in {}",
            self.title
        );
    }
}

async fn look(store: &dyn Store) -> Seen {
    let filter = InspectFilter::new().prefix(PREFIX).include_free();
    let rows = retry(|| store.inspect(&filter)).await;
    let clock = rows.iter().map(|row| row.now).max().expect("the clock's row");
    let rows = rows.into_iter().map(|row| {
        (
            row.key.clone(),
            comparable(changed(row, |it| it.now = Timestamp::EPOCH)),
        )
    });
    Seen {
        clock,
        rows: rows.collect(),
    }
}

/// The row without what means nothing: the holds of a free row.
fn comparable(row: LockRow) -> LockRow {
    changed(row, |it| {
        if it.reentrant_count == 0 {
            it.shared.clear();
        }
    })
}

/// The answers of a batch, with errors. Repeats requests that were not carried out because of others.
async fn answers(store: &dyn Store, requests: &[Request]) -> Vec<Answer> {
    let mut answers: BTreeMap<usize, Answer> = BTreeMap::new();
    within("the store to carry out a batch", async {
        while answers.len() < requests.len() {
            let open: Vec<usize> = (0..requests.len()).filter(|n| !answers.contains_key(n)).collect();
            let asked: Vec<Request> = open.iter().map(|&n| requests[n].clone()).collect();
            for (n, answer) in open.into_iter().zip(store.apply(&asked).await) {
                match answer {
                    Ok(Outcome::Skipped) => {}
                    Err(error) if error.is_retryable() && !error.is_outcome_unknown() => {}
                    answer => drop(answers.insert(n, answer)),
                }
            }
        }
    })
    .await;
    answers.into_values().collect()
}

/// The times at which the request may have been carried out, judged by what it wrote. For a request that wrote
/// nothing both ends are tried: a time that it compared with hardly ever lies between them.
fn clocks(
    request: &Request,
    (earliest, latest): (Timestamp, Timestamp),
    after: Option<&LockRow>,
) -> Vec<Timestamp> {
    let mut clocks = vec![earliest, latest];
    let Some(row) = after else { return clocks };
    clocks.push(row.acquired_at);
    match &request.action {
        Action::Acquire(ask) => {
            let length = ask.wanted_for.unwrap_or_default();
            clocks.push(row.wanted_until - length);
            clocks.extend(row.next.as_ref().map(|next| next.until - length));
            clocks.extend(row.shared.iter().map(|hold| hold.expire_at - ask.ttl));
        }
        Action::Extend(ask) => {
            clocks.push(row.expire_at - ask.ttl);
            clocks.extend(row.shared.iter().map(|hold| hold.expire_at - ask.ttl));
        }
        Action::Release | Action::Transfer(_) => {}
        other => panic!("the suite sends no {other:?}"),
    }
    clocks.retain(|clock| (earliest..=latest).contains(clock));
    clocks
}

/// Whether the rules give this answer and leave this row when it is `now`.
fn is_explained(
    now: Timestamp,
    times: (Timestamp, Timestamp),
    request: &Request,
    before: Option<&LockRow>,
    answer: &Answer,
    after: Option<&LockRow>,
) -> bool {
    if matches!(request.action, Action::Transfer(_))
        && matches!(answer, Err(error) if error.kind() == StoreErrorKind::Unsupported)
    {
        // A store need not have tickets.
        let at = |row: &LockRow| changed(row.clone(), |it| it.now = now);
        return before.map(at) == after.map(at);
    }
    let mut row = before
        .cloned()
        .unwrap_or_else(|| LockRow::new(request.key.clone(), now));
    row.now = now;
    let expected = carry_out(request, &mut row);
    let was_changed = expected.as_ref().is_ok_and(|expected| expected.changed);
    let expected = expected.map(|expected| expected.outcome);
    let expected = match (expected, answer) {
        // A successor's repeated ask that writes nothing may be answered so too.
        (Ok(Outcome::Queued { holder, .. }), Ok(Outcome::Busy(_))) if !was_changed => {
            Ok(Outcome::Busy(holder))
        }
        (expected, _) => expected,
    };
    let row = (before.is_some() || was_changed).then(|| comparable(row));
    let after = after.map(|after| changed(after.clone(), |it| it.now = now));
    row == after
        && match (expected, answer) {
            (Ok(expected), Ok(answer)) => {
                let slack = times.1.since(times.0);
                let (mut expected, mut answer) = (expected, answer.clone());
                let mut times = take_times(&mut expected).into_iter().zip(take_times(&mut answer));
                times.all(|(expected, left)| expected.abs_diff(left) <= slack) && expected == answer
            }
            (Err(_), Err(answer)) => !answer.is_retryable() && !answer.is_outcome_unknown(),
            _ => false,
        }
}

/// Takes the times out of an answer: they may have been read later than the row was written.
fn take_times(outcome: &mut Outcome) -> [Duration; 2] {
    match outcome {
        Outcome::Granted { remaining, .. } => [mem::take(remaining), Duration::ZERO],
        Outcome::Extended {
            remaining, room_in, ..
        } => {
            let room_in = room_in.as_mut().map(mem::take);
            [mem::take(remaining), room_in.unwrap_or_default()]
        }
        Outcome::Busy(holder) | Outcome::Queued { holder, .. } => {
            let remaining = holder.remaining.as_mut().map(mem::take);
            [remaining.expect("a store with a clock tells it"), Duration::ZERO]
        }
        _ => [Duration::ZERO; 2],
    }
}
