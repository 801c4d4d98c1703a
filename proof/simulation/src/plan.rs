//! The events that may happen in one schedule. Each schedule has only some kinds of faults: a fault that
//! always happens hides what others would show.

use std::time::Duration;

use dblock_core::margin;

use crate::tape::Tape;
use crate::tickets::ADOPTER_TTL;

/// In nanoseconds.
pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1_000_000_000;

/// The plan of a schedule.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub(crate) struct Plan {
    pub(crate) processes: usize,
    pub(crate) keys: usize,
    /// Tasks of each process. Each makes one call after the other.
    pub(crate) tasks: u8,
    /// How many calls the store takes at once.
    pub(crate) concurrency: usize,
    pub(crate) wake_ups: bool,
    /// Faults and calls end after this many events.
    pub(crate) events: u32,
    /// Nothing fails, and commits are quick.
    pub(crate) healthy: bool,
    /// Callers that come back at once, and no faults.
    pub(crate) busy: bool,
    /// The engine's thread may run late.
    pub(crate) late_driver: bool,
    pub(crate) ttls: [u64; 2],
    pub(crate) longest_section: usize,
    /// Each step of a body takes so many ms.
    pub(crate) section: Option<u64>,
    /// The server is on the same machine: next to no time passes between two transactions.
    pub(crate) near: bool,
    /// The first process calls again and again. The callers of the others come back after two seconds, and wait for a
    /// lease or take the key.
    pub(crate) others: Option<Others>,
    pub(crate) faults: Faults,
    pub(crate) callers: Callers,
    /// How far the store's clock may still jump ahead, in ns.
    pub(crate) jump_ahead: u64,
}

/// What the callers of the other processes do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    Take,
    Wait,
}

/// How many in a thousand: of batches, of wake-ups, or of faults from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    pub(crate) errors: u32,
    pub(crate) lost: u32,
    pub(crate) late: u32,
    pub(crate) slow_network: u32,
    pub(crate) slow_commits: u32,
    pub(crate) lost_wake_ups: u32,
    pub(crate) repeated_wake_ups: u32,
    pub(crate) pauses: u32,
    pub(crate) deaths: u32,
    pub(crate) cuts: u32,
    pub(crate) broken_listeners: u32,
    pub(crate) operators: u32,
    pub(crate) clock_back: u32,
    pub(crate) clock_ahead: u32,
    /// The server is killed, forgets what was not flushed, and starts again.
    pub(crate) crashes: u32,
    /// The store's clock jumps ahead by more than the margin: exclusion is not promised, fence checks are.
    pub(crate) big_jumps: bool,
}

/// How many in a thousand callers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Callers {
    pub(crate) give_up: u32,
    pub(crate) without_renewal: u32,
    pub(crate) hold_min: u32,
    pub(crate) max_hold: u32,
    pub(crate) signal: u32,
    pub(crate) nested: u32,
    pub(crate) pins: u32,
    /// Those whose transaction is checked with its commit.
    pub(crate) commits: u32,
    pub(crate) extends: u32,
    pub(crate) dropped: u32,
    pub(crate) runs: u32,
    pub(crate) children: u32,
    pub(crate) takes: u32,
    /// Those that take and find their pool empty.
    pub(crate) no_connection: u32,
    /// Those whose lock goes into a ticket.
    pub(crate) tickets: u32,
    /// Those that share the lock, perhaps with a limit.
    pub(crate) shares: u32,
}

const SHORT: [u64; 6] = [1000, 2000, 3000, 5000, 10_000, 30_000];

impl Plan {
    pub(crate) fn draw(tape: &mut Tape) -> Self {
        let kind = tape.below(16);
        let healthy = kind < 4;
        let busy = kind == 3;
        let mut plan = Self {
            processes: 2 + tape.below(3) as usize,
            keys: 1 + tape.below(2) as usize * usize::from(!busy),
            tasks: 1 + u8::try_from(tape.below(3)).unwrap_or(0),
            concurrency: tape.pick(&[1, 3]),
            wake_ups: busy || tape.pick(&[true, true, true, false]),
            events: if busy { 3000 } else { 300 },
            healthy,
            busy,
            late_driver: tape.below(3) == 2,
            ttls: [tape.pick(&SHORT), tape.pick(&SHORT)],
            longest_section: if healthy && kind > 0 { 4 } else { 8 },
            section: None,
            near: false,
            others: None,
            faults: Faults::default(),
            callers: Callers::default(),
            jump_ahead: 0,
        };
        if !healthy {
            plan.faults = Faults::draw(tape);
        }
        if kind == 2 {
            plan.faults.lost_wake_ups = tape.pick(&[50, 300, 1000]);
        }
        if busy {
            plan.ttls = [30_000; 2];
            plan.callers.give_up = tape.pick(&[0, 0, 50]);
            plan.callers.takes = tape.pick(&[0, 1000]);
            if plan.callers.takes == 0 {
                plan.callers.shares = tape.pick(&[0, 500, 900]);
            }
            plan.section = tape.pick(&[None, None, Some(1), Some(100)]);
            plan.near = tape.pick(&[false, true]);
            plan.others = tape.pick(&[None, None, Some(Others::Take), Some(Others::Wait)]);
        } else {
            plan.callers = Callers::draw(tape, healthy);
        }
        if plan.faults.clock_ahead > 0 {
            plan.jump_ahead = harmless_jump(plan.ttls);
            plan.faults.big_jumps = tape.chance(200);
        }
        plan
    }
}

impl Plan {
    /// The plan of a small world, in which this goes wrong. Callers do all that callers do.
    pub(crate) fn small(fault: impl FnOnce(&mut Self)) -> Self {
        let ttls = [1000, 3000];
        let mut plan = Self {
            processes: 2,
            keys: 1,
            tasks: 2,
            concurrency: 3,
            wake_ups: true,
            events: 300,
            healthy: false,
            busy: false,
            late_driver: false,
            ttls,
            longest_section: 6,
            section: None,
            near: false,
            others: None,
            faults: Faults::default(),
            callers: Callers::all(),
            jump_ahead: harmless_jump(ttls),
        };
        fault(&mut plan);
        plan
    }
}

impl Plan {
    /// The plan of callers that take one key without a pause, by bodies of this length, while nothing fails.
    #[cfg(test)]
    pub(crate) fn takers(processes: usize, section: u64, wake_ups: bool, others: Option<Others>) -> Self {
        let mut plan = Self::small(|_| ());
        plan.processes = processes;
        plan.tasks = 1;
        plan.wake_ups = wake_ups;
        plan.events = u32::MAX / 2;
        plan.healthy = true;
        plan.busy = true;
        plan.ttls = [30_000; 2];
        plan.longest_section = 4;
        plan.section = Some(section);
        plan.near = true;
        plan.others = others;
        plan.callers = Callers {
            takes: 1000,
            ..Callers::default()
        };
        plan
    }
}

/// How far the store's clock may jump ahead before a lease ends there while its owner has it, in ns.
fn harmless_jump(ttls: [u64; 2]) -> u64 {
    // The different speeds of clocks use up a part of the margin too.
    let ttl = Duration::from_millis(ttls[0].min(ttls[1]).min(ADOPTER_TTL));
    let drift = Duration::from_millis(4);
    nanos(margin(ttl).saturating_sub(drift))
}

impl Faults {
    fn draw(tape: &mut Tape) -> Self {
        let mut some = |often: &[u32]| if tape.below(2) == 0 { 0 } else { tape.pick(often) };
        Self {
            errors: some(&[20, 100, 300]),
            lost: some(&[20, 100, 300]),
            late: some(&[20, 100, 300]),
            slow_network: some(&[50, 200, 500]),
            slow_commits: some(&[50, 200, 800]),
            lost_wake_ups: some(&[50, 300, 1000]),
            repeated_wake_ups: some(&[50, 300, 800]),
            pauses: some(&[100, 400]),
            deaths: some(&[100]),
            cuts: some(&[100, 400]),
            broken_listeners: some(&[100, 400]),
            operators: some(&[100, 300]),
            clock_back: some(&[100]),
            clock_ahead: some(&[100]),
            crashes: some(&[100, 400]),
            big_jumps: false,
        }
    }
}

impl Callers {
    /// Some callers do each.
    fn all() -> Self {
        Self {
            give_up: 1,
            without_renewal: 1,
            hold_min: 1,
            max_hold: 1,
            signal: 1,
            nested: 1,
            pins: 1,
            commits: 1,
            extends: 1,
            dropped: 1,
            runs: 1,
            children: 1,
            takes: 1,
            no_connection: 1,
            tickets: 1,
            shares: 1,
        }
    }

    fn draw(tape: &mut Tape, healthy: bool) -> Self {
        let mut some = |often: &[u32]| if tape.below(2) == 0 { 0 } else { tape.pick(often) };
        Self {
            give_up: some(&[50, 300]),
            without_renewal: some(&[100, 500]),
            hold_min: if healthy { 0 } else { some(&[50, 300]) },
            max_hold: if healthy { 0 } else { some(&[50, 300]) },
            signal: some(&[100, 500]),
            nested: some(&[100, 400]),
            pins: if healthy { 0 } else { some(&[100, 400]) },
            commits: some(&[100, 400]),
            dropped: some(&[50, 300]),
            extends: some(&[50, 300]),
            runs: some(&[300, 900]),
            children: some(&[100, 300]),
            takes: some(&[200, 700, 1000]),
            no_connection: some(&[50, 300]),
            tickets: some(&[100, 400]),
            shares: some(&[300, 700, 1000]),
        }
    }
}

pub(crate) fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
