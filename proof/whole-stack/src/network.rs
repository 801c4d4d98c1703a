//! The network between the processes and the server: its connections, and what is wrong with it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dblock::Key;
use dblock::store::{Outcome, StoreError, WakeUp};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::chance::{chance, ms, pick};
use crate::checks::TICK;
use crate::world::World;

pub(crate) type Answers = Vec<Result<Outcome, StoreError>>;

/// The latest arrival of a request after it was sent. The memory store may then forget the row that refuses it.
pub(crate) const LATEST: Duration = Duration::from_secs(7);

/// The connections of one life of a process.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) process: usize,
    pub(crate) life: u32,
    /// The process is dead: nothing that it sends gets out any more.
    dead: AtomicBool,
    /// Its manager ends, by intent.
    ending: AtomicBool,
    breaks: Notify,
}

impl Line {
    pub(crate) fn new(process: usize, life: u32) -> Arc<Self> {
        Arc::new(Self {
            process,
            life,
            dead: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            breaks: Notify::new(),
        })
    }

    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    pub(crate) fn break_connections(&self) {
        self.breaks.notify_waiters();
    }

    /// Completes when the connections that are open now break.
    pub(crate) fn broken(&self) -> impl Future<Output = ()> {
        self.breaks.notified()
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "P{}.{}", self.process, self.life)
    }
}

/// What is wrong with the network, and who listens.
#[derive(Debug)]
pub(crate) struct Network {
    /// All faults have ended.
    pub(crate) calm: bool,
    /// By process.
    cut_until: Vec<Instant>,
    down_until: Instant,
    /// By process: the last answer.
    pub(crate) heard_at: Vec<Instant>,
    pub(crate) listeners: Vec<Listener>,
    /// The processes that can hear no wake-ups.
    deaf: BTreeSet<usize>,
    /// Requests whose sender waits for the answer.
    pub(crate) waited_for: BTreeSet<(usize, u32, Key)>,
}

#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) line: Arc<Line>,
    pub(crate) to: mpsc::UnboundedSender<WakeUp>,
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    Goes,
    /// No connection: nothing is sent.
    Unreachable,
    /// The store refuses it.
    Refused,
    /// Lost on the way to the server, or on the way back.
    Lost {
        carried_out: bool,
        hangs: bool,
    },
    /// The sender hears nothing, and it is carried out so much later.
    Late {
        hangs: bool,
        by: Duration,
    },
    /// The sender hears nothing, and it is carried out twice: now, and so much later.
    Repeated {
        hangs: bool,
        by: Duration,
    },
}

impl Network {
    pub(crate) fn new(processes: usize, now: Instant) -> Self {
        Self {
            calm: false,
            cut_until: vec![now; processes],
            down_until: now,
            heard_at: vec![now; processes],
            listeners: Vec::new(),
            deaf: BTreeSet::new(),
            waited_for: BTreeSet::new(),
        }
    }

    pub(crate) fn cut(&mut self, process: usize, length: Duration) {
        self.cut_until[process] = Instant::now() + length;
    }

    pub(crate) fn deafen(&mut self, process: usize) {
        self.deaf.insert(process);
        self.listeners.retain(|listener| listener.line.process != process);
    }

    pub(crate) fn is_deaf(&self, line: &Line) -> bool {
        self.deaf.contains(&line.process)
    }

    pub(crate) fn take_down(&mut self, length: Duration) {
        self.down_until = Instant::now() + length;
        self.listeners.clear();
    }

    pub(crate) fn calm_down(&mut self) {
        self.calm = true;
        let now = Instant::now();
        self.cut_until.fill(now);
        self.down_until = now;
    }

    pub(crate) fn is_cut(&self, line: &Line) -> bool {
        line.is_dead() || Instant::now() < self.cut_until[line.process]
    }

    /// A request of this process is on its way, or was answered a moment ago.
    pub(crate) fn waits(&self, line: &Line) -> bool {
        let mut places = self.waited_for.iter();
        places.any(|(process, life, _)| (*process, *life) == (line.process, line.life))
            || Instant::now() <= self.heard_at[line.process] + TICK
    }

    pub(crate) fn is_down(&self) -> bool {
        Instant::now() < self.down_until
    }
}

impl World {
    /// Every process can hear wake-ups.
    pub(crate) fn all_hear(&self) -> bool {
        self.plan.wake_ups && self.network().deaf.is_empty()
    }

    pub(crate) fn fate(&self, line: &Line) -> Fate {
        let (calm, cut, down) = {
            let network = self.network();
            (network.calm, network.is_cut(line), network.is_down())
        };
        let faults = &self.plan.faults;
        let late = || Fate::Late {
            hangs: fastrand::bool(),
            by: ms(0..=pick(&[10, 1000, 4000])),
        };
        let lost = |carried_out| Fate::Lost {
            carried_out,
            hangs: fastrand::bool(),
        };
        if line.is_dead() {
            Fate::Lost {
                carried_out: false,
                hangs: true,
            }
        } else if down {
            Fate::Unreachable
        } else if cut {
            pick(&[Fate::Unreachable, lost(false), late()])
        } else if calm {
            Fate::Goes
        } else if chance(faults.lost) {
            pick(&[Fate::Unreachable, lost(false), lost(true)])
        } else if chance(faults.late) {
            late()
        } else if chance(faults.repeated) {
            Fate::Repeated {
                hangs: fastrand::bool(),
                by: ms(0..=4000),
            }
        } else if chance(faults.refused) {
            Fate::Refused
        } else {
            Fate::Goes
        }
    }
}
