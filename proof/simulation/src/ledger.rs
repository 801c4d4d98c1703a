//! What the checks remember.

use std::sync::Arc;

use dblock_core::machine::ownership::Ownership;
use dblock_core::store::RecordVersion;
use dblock_core::store::clock::Timestamp;
use dblock_core::store::{Action, Outcome, Request, StoreError};
use uuid::Uuid;

use crate::caller::Transaction;
use crate::store::WakeUp;

/// The state of the checks.
#[derive(Debug)]
pub(crate) struct Checks {
    pub(crate) violation: Option<String>,
    pub(crate) holder: Arc<str>,
    /// All wake-ups that were sent after commits.
    pub(crate) wake_ups: Vec<WakeUp>,
    pub(crate) transactions: Vec<Transaction>,
    /// Leases that an operator has force-released or revoked.
    pub(crate) forced: Vec<Uuid>,
    pub(crate) revoked: Vec<Uuid>,
    /// Leases that may keep a key busy although no caller holds it, and until when.
    pub(crate) excused: Vec<(Uuid, u64)>,
    /// Leases that were passed on, and neither extended nor granted anew since.
    pub(crate) passed_on: Vec<Uuid>,
    pub(crate) probes_left: usize,
    pub(crate) longest_wait: u64,
    /// The caller that is giving up.
    pub(crate) gives_up: Option<usize>,
    pub(crate) keys: Vec<KeyChecks>,
}

#[derive(Debug, Default)]
pub(crate) struct KeyChecks {
    pub(crate) tokens: Vec<i64>,
    /// Those under which several share the key.
    pub(crate) phases: Vec<i64>,
    pub(crate) newest_token: i64,
    /// The owner that entered last.
    pub(crate) last: Option<Arc<Ownership>>,
    pub(crate) newest_checked: i64,
    /// How many bodies have done their work.
    pub(crate) works: u32,
    pub(crate) runs: RunChecks,
    /// `hold_min` keeps others than this lease out until then.
    pub(crate) closed: Option<(u64, Uuid)>,
    /// Since when a caller waits for the key while nobody holds it.
    pub(crate) blocked_since: Option<u64>,
    /// Since when a place is free that somebody waits for.
    pub(crate) idle_since: Option<u64>,
}

impl Checks {
    pub(crate) fn new(keys: usize) -> Self {
        Self {
            violation: None,
            holder: "".into(),
            wake_ups: Vec::new(),
            transactions: Vec::new(),
            forced: Vec::new(),
            revoked: Vec::new(),
            excused: Vec::new(),
            passed_on: Vec::new(),
            probes_left: 0,
            longest_wait: 0,
            gives_up: None,
            keys: (0..keys).map(|_| KeyChecks::default()).collect(),
        }
    }

    /// The store has executed a request. `late`: the sender may have given up, and may not have undone it
    /// before this time.
    pub(crate) fn executed(
        &mut self,
        request: &Request,
        answer: &Result<Outcome, StoreError>,
        late: Option<u64>,
    ) {
        let lease = names(request);
        if let (Ok(Outcome::Granted { .. } | Outcome::Queued { .. }), Some(until)) = (answer, late) {
            self.excused.push((lease, until));
        }
        let is_whole = match (answer, &request.action) {
            (Ok(Outcome::Extended { .. }), _) => true,
            (Ok(Outcome::Granted { remaining, .. }), Action::Acquire(ask)) => *remaining == ask.ttl,
            _ => false,
        };
        if is_whole {
            self.passed_on.retain(|passed_on| *passed_on != lease);
        }
    }

    /// The row was passed on to this lease.
    pub(crate) fn passed_on(&mut self, lease: Uuid) {
        self.passed_on.push(lease);
    }
}

/// The lease that the row names after a grant.
pub(crate) fn names(request: &Request) -> Uuid {
    match &request.action {
        Action::Transfer(ask) => ask.to,
        _ => request.lease_id,
    }
}

/// What must hold about the runs of a key.
#[derive(Debug, Default)]
pub(crate) struct RunChecks {
    /// The bodies that have begun, and their callers.
    pub(crate) entered: Vec<(RecordVersion, usize)>,
    /// The attempts whose bodies have begun since the last success.
    pub(crate) attempts: Vec<u32>,
    /// The fence token of the last success. A body of an older run may still begin, where a jump of the clock
    /// took its lease; its attempts are not those of the next run.
    pub(crate) success: i64,
    /// Until when the last success is remembered.
    pub(crate) succeeded: Option<Timestamp>,
    /// The leases of tokens.
    pub(crate) leases: Vec<(i64, Uuid)>,
    /// The leases that a release has ended.
    pub(crate) released: Vec<Uuid>,
    /// Attempts whose bodies never began, and that could not be taken back in time.
    pub(crate) ghosts: Vec<u32>,
    /// Callers whose child is inside.
    pub(crate) children: Vec<usize>,
}

impl RunChecks {
    pub(crate) fn granted(&mut self, token: i64, lease: Uuid) {
        self.leases.push((token, lease));
    }
}
