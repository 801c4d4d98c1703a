//! What the checks know: who is inside, who waits, and what each of them may do. `calling` has what must hold.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use dblock::store::{Action, Request};
use dblock::{Key, Ticket};
use uuid::Uuid;

use crate::network::Line;
use crate::plan::Plan;

/// A timer of tokio counts in ms, and an answer is a few steps away from its call.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Without faults the store answers by then, also to what has to wait for the batch before.
pub(crate) const ANSWER: Duration = Duration::from_millis(100);

/// How long a release waits for its confirmation.
pub(crate) const RELEASE: Duration = Duration::from_secs(3);

/// How long a call without `wait` waits for the store.
pub(crate) const STORE: Duration = Duration::from_secs(5);

pub(crate) struct Checks {
    pub(crate) keys: BTreeMap<Key, KeyState>,
    pub(crate) calls: BTreeMap<u32, Recorded>,
    pub(crate) last_call: u32,
    /// Who has asked for a lease.
    leases: HashMap<Uuid, Arc<Line>>,
    /// Tickets that nobody has taken up.
    pub(crate) tickets: Vec<(Ticket, Key)>,
    /// For how long everything has stood still.
    pub(crate) jumped: Duration,
}

#[derive(Default)]
pub(crate) struct KeyState {
    pub(crate) last_token: i64,
    /// The last one to enter had the key alone.
    pub(crate) last_alone: bool,
    /// Until then a ticket may keep the key busy.
    pub(crate) ticket_until: Duration,
    /// Since then nobody has it, and somebody waits for it.
    idle_since: Option<Duration>,
}

/// A call that takes locks.
pub(crate) struct Call {
    pub(crate) line: Arc<Line>,
    pub(crate) keys: Vec<Key>,
    pub(crate) limit: Option<u32>,
    pub(crate) wait: Wait,
    /// It adopts a ticket, and does not wait for the key.
    pub(crate) adopts: bool,
    /// It runs under another lock.
    pub(crate) nested: bool,
    /// Its lease may end without a fault.
    pub(crate) may_lose: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    For(Duration),
    Forever,
}

pub(crate) struct Recorded {
    pub(crate) call: Call,
    pub(crate) since: Duration,
    /// By how much time had jumped when it began.
    pub(crate) jumped: Duration,
    pub(crate) state: State,
    /// How long it may take to leave.
    pub(crate) leaves_within: Duration,
    /// It is about to make a ticket.
    pub(crate) makes_ticket: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Inside,
    /// What it does then ends by that time.
    Leaving(Duration),
}

impl Checks {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            keys: plan
                .keys
                .iter()
                .map(|plan| (plan.key.clone(), KeyState::default()))
                .collect(),
            calls: BTreeMap::new(),
            last_call: 0,
            leases: HashMap::new(),
            tickets: Vec::new(),
            jumped: Duration::ZERO,
        }
    }

    /// A request has arrived.
    pub(crate) fn sees(&mut self, line: &Arc<Line>, request: &Request) {
        let lease = match &request.action {
            Action::Acquire(_) => request.lease_id,
            Action::Transfer(ask) => ask.to,
            _ => return,
        };
        self.leases.entry(lease).or_insert_with(|| Arc::clone(line));
    }

    pub(crate) fn asker(&self, lease: Uuid) -> Option<&Arc<Line>> {
        self.leases.get(&lease)
    }

    /// A call of this process that holds no lock and waits.
    pub(crate) fn waits(&self, line: &Line) -> Option<u32> {
        let waits = |(_, recorded): &(&u32, &Recorded)| {
            let call = &recorded.call;
            let same = (call.line.process, call.line.life) == (line.process, line.life);
            same && !call.nested && recorded.state == State::Waiting
        };
        self.calls.iter().find(waits).map(|(number, _)| *number)
    }

    /// Notes since when the key is idle although somebody waits. Returns for how long it was until now.
    pub(crate) fn look(&mut self, key: &Key, now: Duration) -> Option<Duration> {
        let of_key = |call: &&Recorded| call.call.keys.contains(key);
        let calls = || self.calls.values().filter(of_key);
        let wanted = calls().any(|recorded| {
            let call = &recorded.call;
            let waits = recorded.state == State::Waiting && call.wait != Wait::No && !call.adopts;
            waits && !call.line.is_ending() && !call.line.is_dead()
        });
        // A call for several keys may have some of them already.
        let has = |recorded: &Recorded| match recorded.state {
            State::Waiting => recorded.call.keys.len() > 1,
            State::Inside => true,
            State::Leaving(_) => false,
        };
        let has_it = calls().any(has);
        let state = self.keys.get_mut(key)?;
        let was = state.idle_since.map(|since| now.saturating_sub(since));
        let idle = wanted && !has_it && state.ticket_until <= now;
        state.idle_since = idle.then(|| state.idle_since.unwrap_or(now));
        was
    }
}
