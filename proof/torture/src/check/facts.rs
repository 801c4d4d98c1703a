//! What the runner did to the processes and the locks, and what went wrong by itself.

use std::collections::{HashMap, HashSet};

use super::calls::Call;
use super::clocks::Clocks;
use super::end::RECOVERY;
use crate::fault::Fault;
use crate::history::{Event, History, Line, MS};
use crate::process_id::ProcessId;
use crate::settings::Settings;
use crate::target::StoreKind;
use crate::worker::{LONGEST_TTL, key_names};

/// How long after an operator's order of unknown outcome it may still be carried out.
const LATE_ORDER: i64 = 15_000 * MS;

/// How long before a crash a confirmed release may be forgotten: three times PostgreSQL's `wal_writer_delay`,
/// and the time of the kill.
const NOT_FLUSHED: i64 = 1_000 * MS;

/// How old what a replica knows may be that came back not long before a fail-over: Sentinels promote one whose link was down
/// for ten times as long as a primary may be silent.
const CATCHES_UP_WITHIN: i64 = 10_000 * MS;

/// How long after the order a session may end.
const SESSION_ENDS_LATE: i64 = 3_000 * MS;

/// How long an expired lease of etcd may still be there: the leader checks for expiry twice a second.
const EXPIRES_LATE: i64 = 1_000 * MS;

/// How long after its request a lease that nobody entered ends for its process.
pub(super) const LONGEST_LEASE: i64 = LONGEST_TTL.as_secs().cast_signed() * 1_000 * MS;

/// From one moment to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: i64,
    pub(crate) to: i64,
}

impl Span {
    pub(super) fn since(from: i64) -> Self {
        let to = i64::MAX;
        Self { from, to }
    }

    /// The length of the overlap with another span.
    pub(crate) fn within(self, other: Self) -> i64 {
        (self.to.min(other.to) - self.from.max(other.from)).max(0)
    }
}

/// A write of a record that was delayed or lost on purpose.
#[derive(Debug)]
pub(super) struct Trouble {
    at: i64,
    pub(super) key: String,
    /// The write begins an attempt.
    pub(super) begins: bool,
}

/// The facts that may excuse what happened.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pauses: HashMap<ProcessId, Vec<Span>>,
    /// When nothing of a process ran: its pauses, and when the machine was too busy. In order, without overlaps.
    still: HashMap<ProcessId, Vec<Span>>,
    troubles: HashMap<ProcessId, Vec<Trouble>>,
    /// When a process had a session of its own ended.
    sessions_ended: HashMap<ProcessId, Vec<i64>>,
    /// When a fault ended sessions of one slot, or of any.
    broken: Vec<(Option<usize>, Span)>,
    forced: HashMap<String, Vec<Span>>,
    /// When an operator revoked a lease, by key.
    revoked: HashMap<String, Vec<Span>>,
    /// When replies of the store came late, by slot.
    slowed: HashMap<usize, Vec<Span>>,
    slow_commits: Vec<Span>,
    pub(super) clocks: Clocks,
    /// When requests or replies of a process were lost or kept back, by slot.
    unanswered: HashMap<usize, Vec<Span>>,
    /// The same for all processes.
    all_unanswered: Vec<Span>,
    store: String,
    /// Faults in which a server that is alone may have crashed, and when.
    crashes: Vec<(Fault, Span)>,
    /// A leader of this store that is stopped and woken may end leases that are in use.
    woken_leader_revokes: bool,
    /// Faults that took the primary or the leader away, until all servers were back.
    new_leaders: Vec<(Fault, Span)>,
    /// When a process was killed or had ended.
    ends: HashMap<ProcessId, i64>,
    killed: HashSet<ProcessId>,
    pub(crate) calm: Option<i64>,
    /// From when on commits were slow and nothing else was wrong.
    pub(super) only_slow: Option<i64>,
    pub(crate) settings: HashMap<ProcessId, Settings>,
    /// The runner's last line.
    pub(crate) end: i64,
}

impl Facts {
    pub(crate) fn read(history: &History) -> Self {
        let mut facts = Self::of_runner(&history.runner);
        for (process, log) in &history.workers {
            let stalls = log.iter().filter_map(|line| match line.event {
                Event::Stall { ms } => Some(Span {
                    from: line.at - i64::from(ms) * MS,
                    to: line.at,
                }),
                _ => None,
            });
            let all = stalls.chain(facts.pauses(*process).iter().copied());
            let still = apart(all.collect());
            facts.still.insert(*process, still);
            let troubles = log.iter().filter_map(|line| match &line.event {
                Event::Troubled { key, begins } => Some(Trouble {
                    at: line.at,
                    key: key.clone(),
                    begins: *begins,
                }),
                _ => None,
            });
            facts.troubles.insert(*process, troubles.collect());
            let ended = log
                .iter()
                .filter(|line| matches!(line.event, Event::SessionEnds { .. }));
            let ended = ended.map(|line| line.at).collect();
            facts.sessions_ended.insert(*process, ended);
        }
        facts
    }

    fn of_runner(lines: &[Line]) -> Self {
        let mut facts = Self::default();
        for Line { at, event } in lines {
            facts.end = *at;
            if let Event::Fault { fault } = event {
                facts.note_delay(fault, *at);
            }
            facts.note_broken(event, *at);
            match event {
                Event::Paused { process } => {
                    // Until `Continued`.
                    facts.pauses.entry(*process).or_default().push(Span::since(*at));
                }
                Event::Continued { process } => {
                    if let Some(pause) = facts.pauses.entry(*process).or_default().last_mut() {
                        pause.to = *at;
                    }
                }
                Event::Forcing { key } => {
                    facts
                        .forced
                        .entry(key.clone())
                        .or_default()
                        .push(Span::since(*at));
                }
                Event::Forced { key, freed } => {
                    let orders = facts.forced.entry(key.clone()).or_default();
                    let is_open = |order: &Span| order.to == i64::MAX;
                    // Of two orders at once it does not matter which one ends, as long as both together span
                    // the same time.
                    if *freed == Some(false) {
                        orders.iter().rposition(is_open).map(|last| orders.remove(last));
                    } else if let Some(order) = orders.iter_mut().find(|order| is_open(order)) {
                        order.to = *at + if freed.is_some() { 0 } else { LATE_ORDER };
                    }
                }
                Event::Killed { process } | Event::Ended { process, .. } | Event::Stuck { process } => {
                    facts.ends.insert(*process, *at);
                    if !matches!(event, Event::Ended { .. }) {
                        facts.killed.insert(*process);
                    }
                }
                Event::Begin {
                    store,
                    woken_leader_revokes,
                    ..
                } => {
                    facts.store.clone_from(store);
                    facts.woken_leader_revokes = *woken_leader_revokes;
                }
                Event::Fault { fault } if fault.crashes_the_server() => {
                    let span = Span { from: *at, to: *at };
                    facts.crashes.push((fault.clone(), span));
                }
                // A full disk may bring it down at any time.
                Event::Done { fault, .. } if fault.crashes_the_server() => {
                    let mut crashes = facts.crashes.iter_mut();
                    if let Some((_, crash)) = crashes.rfind(|(other, _)| other == fault) {
                        crash.to = *at;
                    }
                }
                Event::Fault { fault } if fault.takes_the_leader() => {
                    let span = Span::since(*at);
                    facts.new_leaders.push((fault.clone(), span));
                }
                // One at a time. A fault that could not be injected counts for nothing.
                Event::Done { fault, injected } if fault.takes_the_leader() => {
                    match facts.new_leaders.last_mut() {
                        Some((_, last)) if *injected => last.to = *at,
                        _ => drop(facts.new_leaders.pop()),
                    }
                }
                Event::Fault {
                    fault: Fault::Revoke { key },
                } => {
                    let key = key_names().swap_remove(*key);
                    facts.revoked.entry(key).or_default().push(Span::since(*at));
                }
                Event::Done {
                    fault: Fault::Revoke { key },
                    injected,
                } => {
                    let key = key_names().swap_remove(*key);
                    let mut orders = facts.revoked.entry(key).or_default().iter_mut();
                    if let Some(order) = orders.find(|order| order.to == i64::MAX) {
                        // An order that failed may still be carried out.
                        order.to = *at + if *injected { 0 } else { LATE_ORDER };
                    }
                }
                Event::Started {
                    process, settings, ..
                } => {
                    facts.settings.insert(*process, *settings);
                }
                Event::Clock { process, rate } => {
                    facts.clocks.rates.insert(*process, f64::from(*rate) / 1_000.0);
                }
                Event::Fault {
                    fault: Fault::ServerClock { to_ms },
                } => facts.clocks.jumps.push((*at, i64::from(*to_ms) * MS)),
                Event::Calm => facts.calm = Some(*at),
                Event::SlowCommits => facts.only_slow = Some(*at),
                _ => {}
            }
        }
        facts
    }

    /// Notes when a fault delays or loses requests or replies, if it does.
    fn note_delay(&mut self, fault: &Fault, at: i64) {
        let (spans, ms) = match *fault {
            Fault::Slow { slot, ms, .. } => (self.slowed.entry(slot).or_default(), ms),
            Fault::SlowCommits { ms } => (&mut self.slow_commits, ms),
            Fault::CutAll { ms } => (&mut self.all_unanswered, ms),
            Fault::Cut { slot, ms }
            | Fault::BlackHole { slot, ms }
            | Fault::Deaf { slot, ms }
            | Fault::DeliverLate { slot, ms } => (self.unanswered.entry(slot).or_default(), ms),
            _ => return,
        };
        let to = at + i64::from(ms) * MS;
        spans.push(Span { from: at, to });
    }

    /// Notes when a fault ends sessions, if it does.
    fn note_broken(&mut self, event: &Event, at: i64) {
        match event {
            Event::Fault { fault } if fault.breaks_sessions() => {
                self.broken.push((fault.slot(), Span::since(at)));
            }
            Event::Done { fault, .. } if fault.breaks_sessions() => {
                let is_open = |span: &Span| span.to == i64::MAX;
                let mut open = self.broken.iter_mut();
                if let Some((_, span)) = open.find(|(slot, span)| *slot == fault.slot() && is_open(span)) {
                    span.to = at;
                }
            }
            _ => {}
        }
    }

    /// When a process was stopped.
    pub(crate) fn pauses(&self, process: ProcessId) -> &[Span] {
        self.pauses.get(&process).map_or(&[], Vec::as_slice)
    }

    /// For how long nothing of a process ran in `span`.
    pub(crate) fn still_within(&self, process: ProcessId, span: Span) -> i64 {
        self.still(process).iter().map(|still| still.within(span)).sum()
    }

    fn still(&self, process: ProcessId) -> &[Span] {
        self.still.get(&process).map_or(&[], Vec::as_slice)
    }

    pub(super) fn troubles(&self, process: ProcessId, span: Span) -> impl Iterator<Item = &Trouble> {
        let troubles = self.troubles.get(&process).into_iter().flatten();
        troubles.filter(move |trouble| (span.from..=span.to).contains(&trouble.at))
    }

    /// Whether a session of the application's pool may have ended in `span`: a call after its own may meet that.
    pub(super) fn ends_sessions(&self, process: ProcessId, span: Span) -> bool {
        let mut ended = self.sessions_ended.get(&process).into_iter().flatten();
        ended.any(|ended| (span.from - SESSION_ENDS_LATE..=span.to).contains(ended))
    }

    /// Whether a fault may have ended the session of a transaction of a process in `span`.
    pub(super) fn may_have_ended_a_session(&self, process: ProcessId, span: Span) -> bool {
        self.ends_sessions(process, span)
            // The server ends sessions by its own clock.
            || self.clocks.are_far_apart()
            || self.is_unanswered(process, span)
            || self.broken_of(process).any(|broken| broken.within(span) > 0)
    }

    /// When a fault ended sessions that may have been a process' own.
    fn broken_of(&self, process: ProcessId) -> impl Iterator<Item = &Span> {
        let concerns = move |slot: &Option<usize>| slot.is_none_or(|slot| slot == process.slot);
        let broken = self.broken.iter().filter(move |(slot, _)| concerns(slot));
        broken.map(|(_, broken)| broken)
    }

    pub(super) fn is_about(&self, store: StoreKind) -> bool {
        self.store == store.name()
    }

    /// Whether the lock of a call ends with a transaction. A store without transactions has the lock alone.
    pub(super) fn ends_with_transaction(&self, call: &Call) -> bool {
        let without = [
            StoreKind::Redis,
            StoreKind::RedisSentinel,
            StoreKind::Zookeeper,
            StoreKind::Etcd,
        ];
        call.form.ends_with_transaction() && !without.into_iter().any(|store| self.is_about(store))
    }

    /// Whether a troubled write may have kept the renewals of a process waiting: SQLite takes one request at a
    /// time.
    pub(super) fn keeps_renewals_waiting(&self, process: ProcessId, span: Span) -> bool {
        self.is_about(StoreKind::Sqlite) && self.troubles(process, span).next().is_some()
    }

    /// Whether the server may have forgotten a release that was confirmed in `released`.
    pub(super) fn may_have_forgotten(&self, released: Span) -> bool {
        let lost = Span {
            to: released.to.saturating_add(NOT_FLUSHED),
            ..released
        };
        let forgotten = |fail_over: Span| fail_over.within(lost) > 0;
        let crashed = |(_, crash): &(Fault, Span)| crash.from <= lost.to && lost.from <= crash.to;
        // The former primary comes back as a replica, and the next fail-over may find it still behind.
        let behind = |fail_over: Span| {
            self.fail_overs().any(|before| {
                let back = before.to <= fail_over.from && fail_over.from - before.to < CATCHES_UP_WITHIN;
                back && before.from <= released.to && released.from <= fail_over.to
            })
        };
        // PostgreSQL flushes only releases that pass the lock on.
        self.is_about(StoreKind::Postgres) && self.crashes.iter().any(crashed)
            || self
                .fail_overs()
                .any(|fail_over| forgotten(fail_over) || behind(fail_over))
    }

    /// A plain read at `at` may show a commit that the crash of the server then takes back: `InnoDB` shows a commit before
    /// it is on the disk.
    pub(super) fn shows_what_may_be_lost(&self, at: i64) -> bool {
        let crashes = |(_, crash): &(Fault, Span)| (crash.from..=crash.to).contains(&at);
        self.is_about(StoreKind::Mysql) && self.crashes.iter().any(crashes)
    }

    /// When a lease that ends at `end` is surely over: later, if a new leader begins it anew.
    pub(super) fn over(&self, end: i64) -> i64 {
        // The next leader of etcd begins each lease anew.
        let begins_anew = self.is_about(StoreKind::Etcd);
        let leaders = self.new_leaders.iter().filter(|_| begins_anew);
        leaders.fold(end, |end, (_, leader)| {
            if leader.from < end.saturating_add(EXPIRES_LATE) {
                end.max(leader.to.saturating_add(LONGEST_LEASE))
            } else {
                end
            }
        })
    }

    /// Until when a row may be kept that nobody released and whose lease was to end at `end`: an extension that arrives late, or once
    /// more, is for a whole lease.
    pub(super) fn extended_late(&self, process: ProcessId, end: i64) -> i64 {
        let late = self
            .broken_of(process)
            .chain(self.unanswered.get(&process.slot).into_iter().flatten());
        let late = late.filter(|late| late.from <= end);
        late.map(|late| late.to.saturating_add(LONGEST_LEASE))
            .fold(end, i64::max)
    }

    /// Whether replies may have reached a process late in `span`.
    pub(crate) fn hears_late(&self, process: ProcessId, span: Span) -> bool {
        let slowed = self.slowed.get(&process.slot).map_or(&[][..], Vec::as_slice);
        let mut late = slowed.iter().chain(&self.slow_commits).chain(self.still(process));
        late.any(|late| late.within(span) > 0)
    }

    /// Whether requests or replies of a process were lost or kept back in `span`.
    pub(crate) fn is_unanswered(&self, process: ProcessId, span: Span) -> bool {
        let own = self.unanswered.get(&process.slot).into_iter().flatten();
        let crashes = self.crashes.iter().map(|(_, crash)| crash);
        let mut spans = own.chain(&self.all_unanswered).chain(crashes);
        spans.any(|unanswered| unanswered.within(span) > 0)
    }

    /// When a change of the primary or the leader may have lost grants.
    pub(crate) fn fail_overs(&self) -> impl Iterator<Item = Span> {
        self.new_leaders.iter().filter_map(|(fault, span)| match *fault {
            Fault::FailOver { .. } => Some(*span),
            // The leader revokes nothing before it wakes.
            Fault::StopLeader { ms } if self.woken_leader_revokes => Some(Span {
                from: span.from + i64::from(ms) * MS,
                ..*span
            }),
            _ => None,
        })
    }

    /// When an operator freed a key.
    pub(crate) fn forced(&self, key: &str) -> &[Span] {
        self.forced.get(key).map_or(&[], Vec::as_slice)
    }

    /// Whether an operator or a fail-over may have taken a key from its holder in `span`.
    pub(crate) fn taken_away(&self, key: &str, span: Span) -> bool {
        let revoked = self.revoked.get(key).map_or(&[][..], Vec::as_slice);
        let orders = self.forced(key).iter().chain(revoked).copied();
        orders
            .chain(self.fail_overs())
            .any(|order| order.within(span) > 0)
    }

    /// Whether any process stood still in `span`.
    pub(crate) fn stalled(&self, span: Span) -> bool {
        self.still.values().flatten().any(|still| still.within(span) > 0)
    }

    /// When nothing was wrong any more.
    pub(crate) fn healthy(&self) -> Option<Span> {
        let from = self.calm? + RECOVERY;
        let to = self.only_slow.unwrap_or(self.end);
        (from < to).then_some(Span { from, to })
    }

    /// Whether a process did not end by itself.
    pub(crate) fn was_killed(&self, process: ProcessId) -> bool {
        self.killed.contains(&process)
    }

    /// When a process ended.
    pub(crate) fn end_of(&self, process: ProcessId) -> i64 {
        self.ends.get(&process).copied().unwrap_or(self.end)
    }
}

/// The same times in order, each moment once.
fn apart(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| span.from);
    let mut apart: Vec<Span> = Vec::new();
    for span in spans {
        match apart.last_mut().filter(|last| span.from <= last.to) {
            Some(last) => last.to = last.to.max(span.to),
            None => apart.push(span),
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_moment_counts_once() {
        let span = |(from, to)| Span { from, to };
        let spans = [(5, 9), (0, 3), (2, 4), (9, 10)].map(span).to_vec();
        assert_eq!(apart(spans), [(0, 4), (5, 10)].map(span));
    }
}
