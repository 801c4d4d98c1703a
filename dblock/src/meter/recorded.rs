//! With the feature `metrics`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use super::AcquireOutcome;
use crate::LostReason;
use crate::store::{Outcome, StoreError, StoreErrorKind};
use dblock_core::store::events::{self, Event};

const ACQUIRE: &str = "dblock_acquire_seconds";
const WAIT: &str = "dblock_wait_seconds";
const HOLD: &str = "dblock_hold_seconds";
const HELD: &str = "dblock_held";
const WAITING: &str = "dblock_waiting";
const LOST: &str = "dblock_lost_total";
const HAND_OVERS: &str = "dblock_hand_overs_total";
const TAKEOVERS: &str = "dblock_takeovers_total";
const RUNS: &str = "dblock_runs_total";
const RENEWAL_LAG: &str = "dblock_renewal_lag_seconds";
const ROUND_TRIP: &str = "dblock_store_round_trip_seconds";
const BATCH_SIZE: &str = "dblock_store_batch_size";
const STORE_ERRORS: &str = "dblock_store_errors_total";
const STORE_EVENTS: &str = "dblock_store_events_total";

/// The call site of locks that are taken by hand and name no function.
const NO_FUNCTION: &str = "none";

const REASONS: [LostReason; 5] = [
    LostReason::Expired,
    LostReason::Gone,
    LostReason::Revoked,
    LostReason::MaxHold,
    LostReason::Shutdown,
];

const KINDS: [StoreErrorKind; 7] = [
    StoreErrorKind::Unreachable,
    StoreErrorKind::Interrupted,
    StoreErrorKind::Conflict,
    StoreErrorKind::Schema,
    StoreErrorKind::Refused,
    StoreErrorKind::Unsupported,
    StoreErrorKind::Other,
];

/// The metrics of a manager.
#[derive(Debug)]
pub(crate) struct Meter {
    store: &'static str,
    renewal_lag: Histogram,
    round_trip: Histogram,
    batch_size: Histogram,
    // A counter that exists from the start shows its first event as an increase.
    errors: Vec<(StoreErrorKind, Counter)>,
    /// By the address of the function's name.
    sites: [Sites; 64],
}

/// Functions whose names fall together. None is ever taken out, so looking for one needs no lock.
#[derive(Debug, Default)]
struct Sites(OnceLock<Box<Known>>);

#[derive(Debug)]
struct Known {
    function: &'static str,
    site: Site,
    more: Sites,
}

/// The metrics of a function that takes locks.
#[derive(Debug)]
pub(crate) struct Site(Arc<Handles>);

#[derive(Debug)]
struct Handles {
    store: &'static str,
    function: &'static str,
    /// By the outcome. Most functions see few of them, and each costs a recorder a whole set of buckets.
    acquire: [OnceLock<Histogram>; AcquireOutcome::Dropped as usize + 1],
    wait: Histogram,
    hold: Histogram,
    held: Gauge,
    waiting: Gauge,
    lost: Vec<(LostReason, Counter)>,
    handed_over: Counter,
    passed_on: Counter,
    taken_over: Counter,
}

/// A caller that waits, while it lives.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<Handles>);

impl Meter {
    pub(crate) fn new(store: &'static str) -> Self {
        describe();
        for event in Event::ALL {
            drop(counter!(STORE_EVENTS, "store" => store, "event" => event.name()));
        }
        Self {
            store,
            renewal_lag: histogram!(RENEWAL_LAG, "store" => store),
            round_trip: histogram!(ROUND_TRIP, "store" => store),
            batch_size: histogram!(BATCH_SIZE, "store" => store),
            errors: KINDS
                .map(|kind| {
                    (
                        kind,
                        counter!(STORE_ERRORS, "store" => store, "kind" => kind_name(kind)),
                    )
                })
                .into(),
            sites: [const { Sites(OnceLock::new()) }; 64],
        }
    }

    /// The metrics of a function.
    pub(crate) fn site(&self, function: Option<&'static str>) -> &Site {
        let function = function.unwrap_or(NO_FUNCTION);
        let mut sites = &self.sites[function.as_ptr().addr() / 8 % self.sites.len()];
        loop {
            match sites.0.get() {
                Some(known) if known.function == function => return &known.site,
                Some(known) => sites = &known.more,
                // The recorder is code of the application: nothing is locked while it is asked. Somebody else may be first.
                None => drop(sites.0.set(Box::new(Known {
                    function,
                    site: Site(Arc::new(Handles::new(self.store, function))),
                    more: Sites::default(),
                }))),
            }
        }
    }

    /// A renewal was confirmed this long after it was due.
    pub(crate) fn renewal_lag(&self, lag: Duration) {
        self.renewal_lag.record(lag);
    }

    /// The store has answered a batch of this many requests, or the engine has given it up.
    pub(crate) fn batch(&self, requests: usize, took: Duration) {
        self.round_trip.record(took);
        self.batch_size
            .record(u32::try_from(requests).unwrap_or(u32::MAX));
    }

    /// Counts what stores of this process have met since it was last counted. Not those of this manager alone: a store
    /// may belong to several.
    #[allow(clippy::unused_self, reason = "without the feature nothing is counted")]
    pub(crate) fn store_events(&self) {
        for (store, event, times) in events::take() {
            counter!(STORE_EVENTS, "store" => store, "event" => event.name()).increment(times);
        }
    }

    /// Counts the errors among the answers of the store.
    pub(crate) fn answers(&self, answers: &[Result<Outcome, StoreError>]) {
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            count(&self.errors, error.kind());
        }
    }
}

impl Handles {
    fn new(store: &'static str, function: &'static str) -> Self {
        let handed_over = |to| counter!(HAND_OVERS, "store" => store, "function" => function, "to" => to);
        Self {
            store,
            function,
            acquire: Default::default(),
            wait: histogram!(WAIT, "store" => store, "function" => function),
            hold: histogram!(HOLD, "store" => store, "function" => function),
            held: gauge!(HELD, "store" => store, "function" => function),
            waiting: gauge!(WAITING, "store" => store, "function" => function),
            lost: REASONS
                .map(|reason| {
                    let name = reason_name(reason);
                    (
                        reason,
                        counter!(LOST, "store" => store, "function" => function, "reason" => name),
                    )
                })
                .into(),
            handed_over: handed_over("task"),
            passed_on: handed_over("process"),
            taken_over: counter!(TAKEOVERS, "store" => store, "function" => function),
        }
    }
}

impl Site {
    /// An acquire has ended after this time.
    pub(crate) fn acquire_ended(&self, outcome: AcquireOutcome, took: Duration) {
        let handles = &self.0;
        let histogram = handles.acquire[outcome as usize].get_or_init(|| {
            histogram!(ACQUIRE, "store" => handles.store, "function" => handles.function,
                "outcome" => outcome_name(outcome))
        });
        histogram.record(took);
    }

    /// An owner has entered, after this time.
    pub(crate) fn granted(&self, took: Duration) {
        self.acquire_ended(AcquireOutcome::Acquired, took);
        self.0.held.increment(1);
    }

    /// An owner that entered has left, after this time.
    pub(crate) fn left(&self, held: Duration) {
        self.0.held.decrement(1);
        self.0.hold.record(held);
    }

    /// An owner that entered has lost the lease, after this time.
    pub(crate) fn lost(&self, reason: LostReason, held: Duration) {
        self.left(held);
        count(&self.0.lost, reason);
    }

    /// A caller waits for an answer, for as long as the result lives.
    pub(crate) fn waits(&self) -> Waiting {
        self.0.waiting.increment(1);
        Waiting(self.0.clone())
    }

    /// A caller that found the key taken has waited this long.
    pub(crate) fn waited(&self, time: Duration) {
        self.0.wait.record(time);
    }

    /// The lock went to another task of this process.
    pub(crate) fn handed_over(&self) {
        self.0.handed_over.increment(1);
    }

    /// The lock went to another process.
    pub(crate) fn passed_on(&self) {
        self.0.passed_on.increment(1);
    }

    /// The lock was taken over from an expired lease.
    pub(crate) fn taken_over(&self) {
        self.0.taken_over.increment(1);
    }

    /// A call of `run_once` has ended so. It is asked for by name: most functions have no runs, and a run is
    /// slow beside that.
    #[cfg(feature = "run_once")]
    pub(crate) fn run_ended(&self, outcome: &'static str) {
        counter!(RUNS, "store" => self.0.store, "function" => self.0.function, "outcome" => outcome)
            .increment(1);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.decrement(1);
    }
}

fn count<T: Copy + PartialEq>(counters: &[(T, Counter)], what: T) {
    let counter = counters.iter().find(|(of, _)| *of == what);
    if let Some((_, counter)) = counter {
        counter.increment(1);
    }
}

fn outcome_name(outcome: AcquireOutcome) -> &'static str {
    match outcome {
        AcquireOutcome::Acquired => "acquired",
        AcquireOutcome::ReEntered => "re_entered",
        AcquireOutcome::Busy => "busy",
        AcquireOutcome::Timeout => "timeout",
        AcquireOutcome::RowLocked => "row_locked",
        AcquireOutcome::NoAnswer => "no_answer",
        AcquireOutcome::StoreError => "store_error",
        AcquireOutcome::Lost => "lost",
        AcquireOutcome::Shutdown => "shutdown",
        AcquireOutcome::Dropped => "dropped",
    }
}

fn reason_name(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Expired => "expired",
        LostReason::Gone => "gone",
        LostReason::Revoked => "revoked",
        LostReason::MaxHold => "max_hold",
        LostReason::Released => "released",
        LostReason::Shutdown => "shutdown",
        LostReason::Ticket => "ticket",
        _ => "other",
    }
}

fn kind_name(kind: StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::Unreachable => "unreachable",
        StoreErrorKind::Interrupted => "interrupted",
        StoreErrorKind::Conflict => "conflict",
        StoreErrorKind::Schema => "schema",
        StoreErrorKind::Refused => "refused",
        StoreErrorKind::Unsupported => "unsupported",
        _ => "other",
    }
}

fn describe() {
    let seconds = [
        (ACQUIRE, "From the call to its outcome, waiting included."),
        (
            WAIT,
            "How long callers waited that found the key taken, until they entered or timed out.",
        ),
        (HOLD, "How long owners held the lock."),
        (RENEWAL_LAG, "How late renewals were confirmed."),
        (ROUND_TRIP, "How long the store took for a batch of requests."),
    ];
    for (name, text) in seconds {
        describe_histogram!(name, Unit::Seconds, text);
    }
    describe_histogram!(
        BATCH_SIZE,
        Unit::Count,
        "How many requests went to the store together."
    );
    describe_gauge!(HELD, Unit::Count, "Locks that are held now.");
    describe_gauge!(
        WAITING,
        Unit::Count,
        "Callers that wait now, for the lock or for the store."
    );
    let counts = [
        (LOST, "Leases that ended before their owners left."),
        (
            HAND_OVERS,
            "Locks that went from an owner straight to a waiting caller.",
        ),
        (TAKEOVERS, "Locks that were taken over from an expired lease."),
        (
            RUNS,
            "Calls of run_once that ran, were replayed, or were refused.",
        ),
        (STORE_ERRORS, "Requests that the store failed."),
        (STORE_EVENTS, "What stores met on the way to their servers."),
    ];
    for (name, text) in counts {
        describe_counter!(name, Unit::Count, text);
    }
}
