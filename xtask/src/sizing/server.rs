//! A server under the locks of many processes, in simulation. Each process has one batch of acquires and one
//! of releases on its way at most, and what comes meanwhile goes in the next one, as in the engine. The
//! server carries out the statements that have arrived, with one commit to disk for all of them.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use fastrand::Rng;

use super::costs::Costs;

/// Statements, and the rows that they write, in a second.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) statements: f64,
    pub(super) rows: f64,
}

/// A server is at its limit when one acquire in a hundred takes longer, in µs.
const LONGEST: f64 = 50_000.0;

/// How long a lock is held, and a message is on its way, in µs.
const HELD: f64 = 10_000.0;
const WAY: f64 = 100.0;

/// At least so many locks are simulated, and those of at least a second. The first half is not counted.
const LOCKS: f64 = 20_000.0;

/// Sessions of the server that work at once.
const SESSIONS: usize = 64;

const LANES: [usize; 2] = [0, 1];

struct Event {
    at: f64,
    what: What,
}

enum What {
    /// A caller of a process asks for a lock, or gives one back.
    Asks { process: usize, lane: usize },
    /// The server has carried out these batches.
    Done(Vec<Batch>),
}

struct Batch {
    process: usize,
    lane: usize,
    asked_at: Vec<f64>,
}

/// The load that a process sends, for one lane.
#[derive(Default, Clone)]
struct Lane {
    waits: Vec<f64>,
    on_its_way: bool,
}

/// Locks a second that a server takes from so many processes.
pub(super) fn limit(costs: &Costs, processes: u32) -> f64 {
    let (mut low, mut high) = (10.0_f64, 1e6_f64);
    while high / low > 1.05 {
        let rate = (low * high).sqrt();
        if slowest(costs, processes as usize, rate) <= LONGEST {
            low = rate;
        } else {
            high = rate;
        }
    }
    low
}

/// The time that one acquire in a hundred exceeds.
fn slowest(costs: &Costs, processes: usize, rate: f64) -> f64 {
    let locks = LOCKS.max(rate);
    let mut random = Rng::with_seed(1);
    let mut lanes = vec![[Lane::default(), Lane::default()]; processes];
    let mut arrived: VecDeque<Batch> = VecDeque::new();
    let mut events = BinaryHeap::new();
    let (mut working, mut asked, mut took) = (false, 0.0, Vec::new());
    let mut ask = |events: &mut BinaryHeap<Event>, now: f64| {
        let at = now - (1.0 - random.f64()).ln() * 1e6 / rate;
        let what = What::Asks {
            process: random.usize(..processes),
            lane: LANES[0],
        };
        events.push(Event { at, what });
    };
    ask(&mut events, 0.0);
    while let Some(Event { at: now, what }) = events.pop() {
        match what {
            What::Asks { process, lane } => {
                if lane == LANES[0] {
                    asked += 1.0;
                    if asked < locks {
                        ask(&mut events, now);
                    }
                }
                lanes[process][lane].waits.push(now);
                arrived.extend(send(&mut lanes[process][lane], process, lane));
            }
            What::Done(batches) => {
                working = false;
                for Batch {
                    process,
                    lane,
                    asked_at,
                } in batches
                {
                    if lane == LANES[0] {
                        took.extend(asked_at.iter().map(|asked_at| now + 2.0 * WAY - asked_at));
                        for _ in &asked_at {
                            let what = What::Asks {
                                process,
                                lane: LANES[1],
                            };
                            events.push(Event { at: now + HELD, what });
                        }
                    }
                    lanes[process][lane].on_its_way = false;
                    arrived.extend(send(&mut lanes[process][lane], process, lane));
                }
            }
        }
        if !working && !arrived.is_empty() {
            working = true;
            let batches: Vec<Batch> = arrived.drain(..arrived.len().min(SESSIONS)).collect();
            let work =
                |batch: &Batch| costs.statement + batch.asked_at.iter().map(|_| costs.row).sum::<f64>();
            let time = costs.flush + batches.iter().map(work).sum::<f64>();
            events.push(Event {
                at: now + time,
                what: What::Done(batches),
            });
        }
    }
    let half = took.len() / 2;
    let counted = &mut took[half..];
    counted.sort_by(f64::total_cmp);
    counted[counted.len() * 99 / 100]
}

/// The next batch of a lane, if there is something to send and none is on its way.
fn send(lane: &mut Lane, process: usize, at: usize) -> Option<Batch> {
    if lane.on_its_way || lane.waits.is_empty() {
        return None;
    }
    lane.on_its_way = true;
    let asked_at = std::mem::take(&mut lane.waits);
    Some(Batch {
        process,
        lane: at,
        asked_at,
    })
}

impl Ord for Event {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at)
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}
