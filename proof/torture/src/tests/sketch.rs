//! Histories written by hand, in milliseconds.

use crate::check::{Cause, Finding, Verdict, check, check_by_own_rules};
use crate::history::{End, Event, Form, History, How, Line, MS};
use crate::process_id::ProcessId;

pub(super) const A: ProcessId = ProcessId::first(0);
pub(super) const B: ProcessId = ProcessId::first(1);

/// The defaults of a call.
const KEY: &str = "key0";
pub(super) const TTL: i64 = 2_000;
pub(super) const WAIT: i64 = 3_000;

/// The arguments of a call.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) form: Form,
    pub(super) key: &'static str,
    pub(super) ttl: u32,
    pub(super) wait: u32,
    pub(super) renew: bool,
    pub(super) hold_min: Option<u32>,
    pub(super) max_hold: Option<u32>,
    pub(super) limit: Option<u32>,
    pub(super) within: Option<u64>,
    pub(super) again: bool,
    pub(super) spawned_by: Option<u64>,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            form: Form::Run,
            key: KEY,
            ttl: u32::try_from(TTL).unwrap(),
            wait: u32::try_from(WAIT).unwrap(),
            renew: true,
            hold_min: None,
            max_hold: None,
            limit: None,
            within: None,
            again: false,
            spawned_by: None,
        }
    }
}

impl Ask {
    pub(super) fn with_hold_min(ms: u32) -> Self {
        let hold_min = Some(ms);
        Self {
            hold_min,
            ..Self::default()
        }
    }
}

/// A history in the making.
#[derive(Default)]
pub(super) struct Sketch(pub(super) History);

impl Sketch {
    pub(super) fn worker(&mut self, process: ProcessId, at: i64, event: Event) {
        let written = Line { at: at * MS, event };
        self.0.workers.entry(process).or_default().push(written);
    }

    pub(super) fn runner(mut self, at: i64, event: Event) -> Self {
        self.0.runner.push(Line { at: at * MS, event });
        self
    }

    pub(super) fn ask(&mut self, process: ProcessId, call: u64, at: i64, within: Option<u64>) {
        let ask = Ask {
            within,
            ..Ask::default()
        };
        self.ask_as(process, call, at, ask);
    }

    pub(super) fn ask_as(&mut self, process: ProcessId, call: u64, at: i64, ask: Ask) {
        let event = Event::Ask {
            call,
            key: ask.key.to_owned(),
            form: ask.form,
            ttl_ms: ask.ttl,
            wait_ms: ask.wait,
            renew: ask.renew,
            hold_min_ms: ask.hold_min,
            max_hold_ms: ask.max_hold,
            limit: ask.limit,
            within: ask.within,
            again: ask.again,
            spawned_by: ask.spawned_by,
        };
        self.worker(process, at, event);
    }

    pub(super) fn enter(&mut self, process: ProcessId, call: u64, at: i64, (owner, token): (&str, i64)) {
        let owner = owner.to_owned();
        self.worker(process, at, Event::Enter { call, owner, token });
    }

    pub(super) fn leave(&mut self, process: ProcessId, call: u64, at: i64, last_step: i64) {
        let last_step = last_step * MS;
        let how = How::Returned;
        self.worker(process, at, Event::Leave { call, last_step, how });
    }

    pub(super) fn answer(&mut self, process: ProcessId, call: u64, at: i64, end: End, by: Option<i64>) {
        let text = None;
        self.worker(process, at, Event::Answer { call, end, by, text });
    }

    /// The end of a section and of its call.
    pub(super) fn end(&mut self, process: ProcessId, call: u64, at: i64, end: End) {
        self.leave(process, call, at, at);
        self.answer(process, call, at, end, None);
    }

    /// A whole call, with its token as the owner, whose section takes steps until it ends.
    pub(super) fn section(self, process: ProcessId, call: u64, token: i64, from: i64, to: i64) -> Self {
        self.section_last_seen(process, call, token, from, (to, to))
    }

    pub(super) fn section_last_seen(
        mut self,
        process: ProcessId,
        call: u64,
        token: i64,
        from: i64,
        (to, last_step): (i64, i64),
    ) -> Self {
        self.ask(process, call, from, None);
        self.enter(process, call, from, (&token.to_string(), token));
        self.leave(process, call, to, last_step);
        self.answer(process, call, to, End::Done, None);
        self
    }

    pub(super) fn write(
        mut self,
        at: i64,
        process: ProcessId,
        call: u64,
        token: i64,
        accepted: bool,
    ) -> Self {
        let event = Event::Write {
            from: process,
            call,
            key: KEY.to_owned(),
            token,
            sent: at * MS,
            last: 0,
            accepted,
        };
        self.0.resource.push(Line { at: at * MS, event });
        self
    }

    /// Ends the history as a good run ends, and checks it.
    pub(super) fn judge(self) -> Verdict {
        let quiet = self.runner(100_000, Event::Quiet { held: Vec::new() });
        check_by_own_rules(&quiet.0)
    }

    /// Whether the checker of another maker finds nothing.
    pub(super) fn fits_an_order(self) -> bool {
        check(&self.0)
            .findings
            .iter()
            .all(|found| !matches!(found, Finding::NotLinearizable(_)))
    }

    pub(super) fn findings(self) -> Vec<Finding> {
        self.judge().findings
    }
}

/// The beginning of a run.
pub(super) fn begin(store: &str) -> Event {
    Event::Begin {
        store: store.to_owned(),
        seed: 1,
        end: 0,
        woken_leader_revokes: false,
    }
}

pub(super) fn forced(sketch: Sketch, at: i64) -> Sketch {
    operated(sketch, at, Some(true))
}

/// Adds an operator's order, and whether it freed the key.
pub(super) fn operated(sketch: Sketch, at: i64, freed: Option<bool>) -> Sketch {
    let key = KEY.to_owned();
    sketch
        .runner(at, Event::Forcing { key: key.clone() })
        .runner(at + 1, Event::Forced { key, freed })
}

pub(super) fn paused(sketch: Sketch, process: ProcessId, from: i64, to: i64) -> Sketch {
    sketch
        .runner(from, Event::Paused { process })
        .runner(to, Event::Continued { process })
}

/// The cause of the only overlap.
pub(super) fn overlap(sketch: Sketch) -> Cause {
    let verdict = sketch.judge();
    let causes: Vec<_> = verdict.overlaps.into_iter().collect();
    let [(cause, 1)] = causes[..] else {
        panic!("{causes:?}")
    };
    let overlaps = |found: &Finding| matches!(found, Finding::Overlap { .. });
    assert_eq!(verdict.findings.iter().any(overlaps), cause == Cause::Unexplained);
    cause
}
