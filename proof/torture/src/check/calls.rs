//! The calls of all processes, put together from their lines.

use std::collections::HashMap;

use super::facts::Facts;
use crate::history::{End, Event, History, How, Line, MS, Way};
use crate::seat::Life;
use crate::worker::LONGEST_TTL;

/// A lease that nobody has entered ends for its process so long after its request was sent.
const LONGEST_LEASE: i64 = LONGEST_TTL.as_secs().cast_signed() * 1_000 * MS;

/// By how much a token is larger at most than one before it of the same lease: some owners write down no section.
/// The first token of a lease is the store's clock in microseconds.
const HANDED_OVER: i64 = 8;

/// A call for a lock.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) life: Life,
    pub(crate) number: u64,
    pub(crate) key: String,
    pub(crate) way: Way,
    pub(crate) wait: i64,
    pub(crate) parameters: Parameters,
    pub(crate) spawned: bool,
    within: Option<u64>,
    /// The outermost call of its chain.
    pub(crate) chain: u64,
    /// The outermost call of its chain with the same key: who has the key, whatever the library calls him.
    /// Two sections of one key with different roots must not be there at once.
    pub(crate) root: u64,
    pub(crate) asked: i64,
    pub(crate) stay: Option<Stay>,
    /// When its guard's release was confirmed.
    pub(crate) released: Option<i64>,
    pub(crate) answer: Option<Answer>,
    pub(crate) transferred: Option<i64>,
    /// When its process ended.
    process_end: i64,
}

/// How the lease was asked for: by the root, whatever is asked inside of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameters {
    pub(crate) ttl: i64,
    pub(crate) renew: bool,
    pub(crate) hold_min: Option<i64>,
    pub(crate) max_hold: Option<i64>,
}

/// A section.
#[derive(Debug, Clone)]
pub(crate) struct Stay {
    pub(crate) entered: i64,
    pub(crate) owner: String,
    pub(crate) token: i64,
    /// When it kept its thread.
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

/// When a section began, and its token.
fn entry(call: &Call) -> Option<(i64, i64)> {
    call.stay.as_ref().map(|stay| (stay.entered, stay.token))
}

impl Call {
    /// It is the first of its chain with its key, and not inside of another's lease.
    pub(crate) fn is_root(&self) -> bool {
        self.root == self.number
    }

    /// Whether one chain made both, and the one inside of the other's lease.
    pub(crate) fn shares_root(&self, other: &Self) -> bool {
        (self.life, self.root) == (other.life, other.root)
    }

    pub(crate) fn left_how(&self) -> Option<How> {
        Some(self.stay.as_ref()?.left?.how)
    }

    /// When its section ended: for one that was cut by a kill, the last moment of which it is sure that the
    /// process lived.
    pub(crate) fn stay_end(&self) -> i64 {
        let left = self.stay.as_ref().and_then(|stay| stay.left);
        left.map_or(self.process_end, |left| left.at)
    }

    /// When the caller knew whether it had the lock, or was no more.
    pub(crate) fn decided(&self) -> i64 {
        let entered = self.stay.as_ref().map(|stay| stay.entered);
        let answered = self.answer.as_ref().map(|answer| answer.at);
        entered.or(answered).unwrap_or(self.process_end)
    }
}

/// All calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    calls: Vec<Call>,
    places: HashMap<(Life, u64), usize>,
}

impl Calls {
    pub(crate) fn read(history: &History, facts: &Facts) -> Self {
        let mut calls = Self::default();
        for (life, log) in &history.workers {
            for line in log {
                calls.add(*life, line, facts);
            }
        }
        calls
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter()
    }

    /// A call and those around it, from the innermost outwards.
    pub(crate) fn outwards(&self, call: &Call) -> impl Iterator<Item = &Call> {
        self.around(call.life, Some(call.number))
    }

    pub(crate) fn get(&self, life: Life, number: u64) -> Option<&Call> {
        self.places.get(&(life, number)).map(|place| &self.calls[*place])
    }

    /// The store granted the lease of a section after this, or passed it on. The process has one request for a
    /// key at a time, so that of the lease was sent after the process had entered with another lease, and by
    /// its caller or by one that waited before it.
    pub(crate) fn granted_after(&self, call: &Call) -> i64 {
        let of_key = || {
            let calls = self.calls.iter();
            calls.filter(|other| other.is_root() && other.life == call.life && other.key == call.key)
        };
        let mut entries: Vec<_> = of_key().filter_map(entry).collect();
        entries.sort_unstable_by(|one, other| other.cmp(one));
        let Some(own) = self.get(call.life, call.root).and_then(entry) else {
            return call.asked;
        };
        let (mut first, mut before) = (own, i64::MIN);
        for (entered, token) in entries.into_iter().filter(|entry| *entry < own) {
            if !(1..=HANDED_OVER).contains(&(first.1 - token)) {
                before = entered;
                break;
            }
            first = (entered, token);
        }
        let may_have_sent =
            |other: &&Call| other.asked <= first.0 && other.decided() > before.max(first.0 - LONGEST_LEASE);
        let asked = of_key().filter(may_have_sent).map(|other| other.asked).min();
        before.max(asked.unwrap_or(call.asked))
    }

    /// The sections of each key, in the order of their entries.
    pub(crate) fn sections(&self) -> Vec<(&str, Vec<(&Call, &Stay)>)> {
        let mut by_key: HashMap<&str, Vec<(&Call, &Stay)>> = HashMap::new();
        for call in &self.calls {
            if let Some(stay) = &call.stay {
                by_key.entry(&call.key).or_default().push((call, stay));
            }
        }
        let mut by_key: Vec<_> = by_key.into_iter().collect();
        by_key.sort_by_key(|(key, _)| *key);
        for (_, sections) in &mut by_key {
            sections.sort_by_key(|(_, stay)| stay.entered);
        }
        by_key
    }

    fn add(&mut self, life: Life, written: &Line, facts: &Facts) {
        let at = written.at;
        let number = match &written.event {
            Event::Ask {
                call,
                key,
                way,
                ttl_ms,
                wait_ms,
                renew,
                hold_min_ms,
                max_hold_ms,
                within,
                spawned_by,
            } => {
                let ns = |ms: u32| i64::from(ms) * MS;
                let own = Parameters {
                    ttl: ns(*ttl_ms),
                    renew: *renew,
                    hold_min: hold_min_ms.map(ns),
                    max_hold: max_hold_ms.map(ns),
                };
                let chain = self
                    .around(life, *within)
                    .last()
                    .map_or(*call, |outermost| outermost.number);
                let root = self
                    .around(life, *within)
                    .filter(|outer| outer.key == *key)
                    .last();
                let call = Call {
                    life,
                    number: *call,
                    key: key.clone(),
                    way: *way,
                    wait: ns(*wait_ms),
                    parameters: root.map_or(own, |root| root.parameters),
                    spawned: spawned_by.is_some(),
                    within: *within,
                    chain,
                    root: root.map_or(*call, |root| root.number),
                    asked: at,
                    stay: None,
                    released: None,
                    answer: None,
                    transferred: None,
                    process_end: facts.end_of(life),
                };
                self.places.insert((life, call.number), self.calls.len());
                self.calls.push(call);
                return;
            }
            Event::Enter { call, .. }
            | Event::Block { call, .. }
            | Event::Unblock { call }
            | Event::Leave { call, .. }
            | Event::Released { call }
            | Event::Answer { call, .. } => *call,
            // Its number has its call in it.
            Event::Transferred { id } => (*id & 0xffff_ffff).unsigned_abs(),
            _ => return,
        };
        let Some(place) = self.places.get(&(life, number)) else {
            return;
        };
        self.calls[*place].note(written);
    }

    /// The calls around one that is made inside of `within`, from the innermost outwards.
    fn around(&self, life: Life, within: Option<u64>) -> impl Iterator<Item = &Call> {
        let first = within.and_then(|number| self.get(life, number));
        std::iter::successors(first, move |call| self.get(life, call.within?))
    }
}

impl Call {
    fn note(&mut self, line: &Line) {
        let at = line.at;
        match &line.event {
            Event::Enter { owner, token, .. } => {
                self.stay = Some(Stay {
                    entered: at,
                    owner: owner.clone(),
                    token: *token,
                    blocks: Vec::new(),
                    left: None,
                });
            }
            Event::Block { .. } => {
                if let Some(stay) = &mut self.stay {
                    stay.blocks.push((at, self.process_end));
                }
            }
            Event::Unblock { .. } => {
                if let Some((_, to)) = self.stay.as_mut().and_then(|stay| stay.blocks.last_mut()) {
                    *to = at;
                }
            }
            Event::Leave { last_step, how, .. } => {
                if let Some(stay) = &mut self.stay {
                    stay.left = Some(Left {
                        at,
                        last_step: *last_step,
                        how: *how,
                    });
                }
            }
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
            _ => {}
        }
    }
}
