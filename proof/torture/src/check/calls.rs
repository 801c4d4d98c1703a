//! The calls of all processes, put together from their lines.

use std::collections::{HashMap, HashSet};

use super::facts::{Facts, LONGEST_LEASE};
use crate::history::{Count, End, Event, Form, History, How, Line, MS};
use crate::process_id::ProcessId;

/// The largest difference of two successive tokens of one lease that the history shows: some owners write no
/// section. The first token of a lease is the store's clock in microseconds.
pub(super) const HANDED_OVER: i64 = 8;

/// A call for a lock.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) process: ProcessId,
    pub(crate) number: u64,
    pub(crate) key: String,
    pub(crate) form: Form,
    pub(crate) wait: i64,
    pub(crate) parameters: Parameters,
    pub(crate) spawned: bool,
    within: Option<u64>,
    /// The outermost call of the chain.
    pub(crate) chain: u64,
    /// The outermost call of the chain with the same key: it acquires the key, those inside re-enter. It stands
    /// for the owner, whatever the library says. No two may hold one key at once.
    pub(crate) acquirer: u64,
    pub(crate) asked: i64,
    pub(crate) section: Option<Section>,
    /// From when on it put its lock into a ticket, when that was done, and until when the ticket keeps the key.
    pub(crate) ticket: Option<[i64; 3]>,
    /// The call whose ticket it adopts.
    pub(crate) adopts: Option<(ProcessId, u64)>,
    /// When its guard's release was confirmed.
    pub(crate) released: Option<i64>,
    pub(crate) answer: Option<Answer>,
    pub(crate) transferred: Option<i64>,
    /// The database confirmed the commit of its transaction, or its rollback.
    pub(crate) committed: Option<bool>,
    /// What it counted or transferred is in the database.
    pub(crate) stands: bool,
    /// When its process ended.
    process_end: i64,
}

/// What the acquirer asked for. It counts for the re-entries too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameters {
    pub(crate) ttl: i64,
    pub(crate) renew: bool,
    pub(crate) hold_min: Option<i64>,
    pub(crate) max_hold: Option<i64>,
    pub(crate) limit: Option<u32>,
}

/// A section.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    pub(crate) entered: i64,
    pub(crate) owner: String,
    pub(crate) token: i64,
    /// When the body blocked its thread.
    pub(crate) blocks: Vec<(i64, i64)>,
    pub(crate) left: Option<Left>,
}

/// The end of a section.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub(crate) at: i64,
    pub(crate) last_step: i64,
    pub(crate) how: How,
}

/// The end of a call.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) at: i64,
    pub(crate) end: End,
    pub(crate) by: Option<i64>,
    pub(crate) text: Option<String>,
}

/// The counters at the end.
pub(super) fn counts(history: &History) -> impl Iterator<Item = &Count> {
    let counted = history.runner.iter().filter_map(|line| match &line.event {
        Event::Counted { counts } => Some(counts),
        _ => None,
    });
    counted.flatten()
}

/// Every line of the ledger at the end, by transfer.
fn transfers(history: &History) -> impl Iterator<Item = &i64> {
    let ledgers = history.runner.iter().filter_map(|line| match &line.event {
        Event::Bank { transfers, .. } => Some(transfers),
        _ => None,
    });
    ledgers.flatten()
}

/// When a section began, and its token.
fn entry(call: &Call) -> Option<(i64, i64)> {
    let section = call.section.as_ref()?;
    Some((section.entered, section.token))
}

impl Call {
    pub(crate) fn is_acquirer(&self) -> bool {
        self.acquirer == self.number
    }

    /// Whether both calls share the key, so that both may be inside.
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        self.parameters.limit.is_some() && other.parameters.limit.is_some()
    }

    /// Whether both calls are of one owner of the key.
    pub(crate) fn shares_acquirer(&self, other: &Self) -> bool {
        (self.process, self.acquirer) == (other.process, other.acquirer)
    }

    pub(crate) fn left_how(&self) -> Option<How> {
        Some(self.section.as_ref()?.left?.how)
    }

    /// When the section ended. If a kill cut it: the last moment at which the process surely ran.
    pub(crate) fn section_end(&self) -> i64 {
        let left = self.section.as_ref().and_then(|section| section.left);
        left.map_or(self.process_end, |left| left.at)
    }

    /// When the caller knew whether it had the lock, or its process ended.
    pub(crate) fn decided(&self) -> i64 {
        let entered = self.section.as_ref().map(|section| section.entered);
        let answered = self.answer.as_ref().map(|answer| answer.at);
        entered.or(answered).unwrap_or(self.process_end)
    }
}

/// All calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    all: Vec<Call>,
    index: HashMap<(ProcessId, u64), usize>,
    /// By process and key.
    acquired: HashMap<(ProcessId, String), Acquired>,
}

/// How a process acquired a key.
#[derive(Debug, Default)]
struct Acquired {
    /// The acquirers.
    calls: Vec<usize>,
    /// Those that entered, in that order.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// When it entered, and its token.
    came: (i64, i64),
    asked: i64,
    left: i64,
    /// How long those stayed that had entered before with its token: those who share a lease have one.
    stayed: i64,
}

impl Acquired {
    fn order(&mut self) {
        self.entries
            .sort_unstable_by_key(|at| (at.came, at.asked, at.left));
        for n in 1..self.entries.len() {
            let before = &self.entries[n - 1];
            if before.came.1 == self.entries[n].came.1 {
                self.entries[n].stayed = before.stayed.max(before.left);
            }
        }
    }
}

impl Calls {
    pub(crate) fn read(history: &History, facts: &Facts) -> Self {
        let mut calls = Self::default();
        for (process, log) in &history.workers {
            for line in log {
                calls.add(*process, line, facts);
            }
        }
        let counted = counts(history).flat_map(|count| count.lines.iter().map(|(_, _, id)| id));
        let stands: HashSet<&i64> = counted.chain(transfers(history)).collect();
        for call in &mut calls.all {
            call.stands = stands.contains(&call.process.id_of(call.number));
        }
        for (at, call) in calls
            .all
            .iter()
            .enumerate()
            .filter(|(_, call)| call.is_acquirer())
        {
            let acquired = calls
                .acquired
                .entry((call.process, call.key.clone()))
                .or_default();
            acquired.calls.push(at);
            let answered = call.answer.as_ref().map(|answer| answer.at);
            acquired.entries.extend(entry(call).map(|came| Entry {
                came,
                asked: call.asked,
                left: answered.unwrap_or(call.process_end),
                stayed: i64::MIN,
            }));
        }
        calls.acquired.values_mut().for_each(Acquired::order);
        calls
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Call> {
        self.all.iter()
    }

    /// A call and those around it, from the inside outwards.
    pub(crate) fn outwards(&self, call: &Call) -> impl Iterator<Item = &Call> {
        self.around(call.process, Some(call.number))
    }

    pub(crate) fn get(&self, process: ProcessId, number: u64) -> Option<&Call> {
        Some(&self.all[*self.index.get(&(process, number))?])
    }

    /// The next token may be smaller: nothing may stand of the transaction that took this one, and the clock, from which
    /// the next one comes, was set back.
    pub(super) fn may_be_followed_by_a_smaller_token(&self, call: &Call, facts: &Facts) -> bool {
        let outer = self.get(call.process, call.acquirer).unwrap_or(call);
        let is_undone = outer.form.ends_with_transaction() && outer.committed != Some(true);
        is_undone && facts.clocks.were_set_back()
    }

    /// A time before the grant of a section's lease. A process has one request for a key at a time. So the
    /// request for this lease was sent after the process entered with the lease before, and for this caller or
    /// one that waited then.
    pub(crate) fn granted_after(&self, call: &Call) -> i64 {
        let own = self.get(call.process, call.acquirer).and_then(entry);
        let acquired = self.acquired.get(&(call.process, call.key.clone()));
        let Some((own, Acquired { calls, entries })) = own.zip(acquired) else {
            return call.asked;
        };
        let (mut first, mut before) = (own, i64::MIN);
        for n in (1..entries.partition_point(|at| at.came <= own)).rev() {
            let ((entered, token), stayed) = (entries[n - 1].came, entries[n].stayed);
            let goes_on = match first.1 - token {
                0 => stayed >= entries[n].asked,
                distance => (1..=HANDED_OVER).contains(&distance),
            };
            if !goes_on {
                before = entered;
                break;
            }
            first = (entered, token);
        }
        let may_have_sent =
            |other: &&Call| other.asked <= first.0 && other.decided() > before.max(first.0 - LONGEST_LEASE);
        let acquirers = calls.iter().map(|at| &self.all[*at]);
        let asked = acquirers.filter(may_have_sent).map(|other| other.asked).min();
        before.max(asked.unwrap_or(call.asked))
    }

    /// The sections of each key, in the order of their entries.
    pub(crate) fn sections(&self) -> Vec<(&str, Vec<(&Call, &Section)>)> {
        let mut by_key: HashMap<&str, Vec<(&Call, &Section)>> = HashMap::new();
        for call in &self.all {
            if let Some(section) = &call.section {
                by_key.entry(&call.key).or_default().push((call, section));
            }
        }
        let mut by_key: Vec<_> = by_key.into_iter().collect();
        by_key.sort_by_key(|(key, _)| *key);
        for (_, sections) in &mut by_key {
            sections.sort_by_key(|(_, section)| section.entered);
        }
        by_key
    }

    fn add(&mut self, process: ProcessId, written: &Line, facts: &Facts) {
        let at = written.at;
        let number = match &written.event {
            Event::Ask {
                call,
                key,
                form,
                ttl_ms,
                wait_ms,
                renew,
                hold_min_ms,
                max_hold_ms,
                limit,
                within,
                again,
                spawned_by,
            } => {
                let ns = |ms: u32| i64::from(ms) * MS;
                let own = Parameters {
                    ttl: ns(*ttl_ms),
                    renew: *renew,
                    hold_min: hold_min_ms.map(ns),
                    max_hold: max_hold_ms.map(ns),
                    limit: *limit,
                };
                // A second call is in the chain around the first.
                let chain = self
                    .around(process, *within)
                    .skip(usize::from(*again))
                    .last()
                    .map_or(*call, |outermost| outermost.number);
                let acquirer = self
                    .around(process, *within)
                    .filter(|outer| outer.key == *key)
                    .last();
                let call = Call {
                    process,
                    number: *call,
                    key: key.clone(),
                    form: *form,
                    wait: ns(*wait_ms),
                    parameters: acquirer.map_or(own, |acquirer| acquirer.parameters),
                    spawned: spawned_by.is_some(),
                    within: *within,
                    chain,
                    acquirer: acquirer.map_or(*call, |acquirer| acquirer.number),
                    asked: at,
                    section: None,
                    ticket: None,
                    adopts: None,
                    released: None,
                    answer: None,
                    transferred: None,
                    committed: None,
                    stands: false,
                    process_end: facts.end_of(process),
                };
                self.index.insert((process, call.number), self.all.len());
                self.all.push(call);
                return;
            }
            Event::Enter { call, .. }
            | Event::Block { call, .. }
            | Event::Unblock { call }
            | Event::Leave { call, .. }
            | Event::Ticket { call, .. }
            | Event::Adopts { call, .. }
            | Event::Released { call }
            | Event::Concluded { call, .. }
            | Event::Answer { call, .. } => *call,
            // The lower half of the id is the call.
            Event::Transferred { id } => (*id & 0xffff_ffff).unsigned_abs(),
            _ => return,
        };
        let Some(index) = self.index.get(&(process, number)) else {
            return;
        };
        self.all[*index].note(written);
    }

    /// The call `within` and those around it, from the inside outwards.
    fn around(&self, process: ProcessId, within: Option<u64>) -> impl Iterator<Item = &Call> {
        let first = within.and_then(|number| self.get(process, number));
        std::iter::successors(first, move |call| self.get(process, call.within?))
    }
}

impl Call {
    fn note(&mut self, line: &Line) {
        let at = line.at;
        match &line.event {
            Event::Enter { owner, token, .. } => {
                self.section = Some(Section {
                    entered: at,
                    owner: owner.clone(),
                    token: *token,
                    blocks: Vec::new(),
                    left: None,
                });
            }
            Event::Block { .. } => {
                if let Some(section) = &mut self.section {
                    section.blocks.push((at, self.process_end));
                }
            }
            Event::Unblock { .. } => {
                let section = self.section.as_mut();
                if let Some((_, to)) = section.and_then(|section| section.blocks.last_mut()) {
                    *to = at;
                }
            }
            Event::Leave { last_step, how, .. } => {
                if let Some(section) = &mut self.section {
                    section.left = Some(Left {
                        at,
                        last_step: *last_step,
                        how: *how,
                    });
                }
            }
            Event::Ticket { since, until, .. } => self.ticket = Some([*since, at, *until]),
            Event::Adopts { giver, ticket, .. } => self.adopts = Some((*giver, *ticket)),
            Event::Released { .. } => self.released = Some(at),
            Event::Answer { end, by, text, .. } => {
                self.answer = Some(Answer {
                    at,
                    end: *end,
                    by: *by,
                    text: text.clone(),
                });
            }
            Event::Transferred { id } => self.transferred = Some(*id),
            Event::Concluded { committed, .. } => self.committed = Some(*committed),
            _ => {}
        }
    }
}
