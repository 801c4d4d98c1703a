//! What may happen in a run. Each run has only some kinds of faults: a fault that always comes hides what others would
//! show.

use std::time::Duration;

use dblock::Key;

use crate::chance::{chance, ms, pick};

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) processes: usize,
    /// Tasks of each process. Each makes one call after the other.
    pub(crate) callers: usize,
    /// How many calls each of them makes.
    pub(crate) calls: usize,
    pub(crate) keys: Vec<KeyPlan>,
    /// How many batches the store takes at once, for each part.
    pub(crate) concurrency: usize,
    pub(crate) parts: usize,
    pub(crate) wake_ups: bool,
    pub(crate) ttl: Duration,
    /// In ms.
    pub(crate) longest_stay: u64,
    /// In ms: the pause of a caller between two calls.
    pub(crate) longest_pause: u64,
    /// In ms: the usual way of a message.
    pub(crate) longest_way: u64,
    /// Nothing fails, but callers and managers may leave at any time.
    pub(crate) healthy: bool,
    pub(crate) faults: Faults,
    /// What happens to processes and to the network, one after the other.
    pub(crate) incidents: Vec<Incident>,
}

/// A key, and how many callers may share it; `None` for a key that each takes alone.
#[derive(Debug)]
pub(crate) struct KeyPlan {
    pub(crate) key: Key,
    pub(crate) limit: Option<u32>,
}

/// How many in a thousand messages.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// The request, or its answer, is lost, and the connection hangs or breaks.
    pub(crate) lost: u32,
    /// As `lost`, and the request is carried out later.
    pub(crate) late: u32,
    /// As `lost`, and the request is carried out once more, later.
    pub(crate) repeated: u32,
    /// The store refuses the batch.
    pub(crate) refused: u32,
    /// Somebody else has the row locked.
    pub(crate) skipped: u32,
    /// It takes up to seconds.
    pub(crate) slow: u32,
    pub(crate) lost_wake_ups: u32,
    pub(crate) repeated_wake_ups: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Incident {
    /// The network loses all that a process sends.
    Cut,
    /// The connections of a process break.
    Break,
    /// The server is away for a while, and all connections break.
    Restart,
    /// A process dies.
    Kill,
    /// All that a process does is dropped, and then its manager.
    Drop,
    /// A manager is shut down while it is used.
    Shutdown,
    /// A process hears no wake-ups from now on, and has to poll.
    Deaf,
    /// Everything stands still for a while.
    Jump,
    /// An operator revokes a key.
    Revoke,
}

/// The incidents that are no faults.
const HEALTHY: [Incident; 3] = [Incident::Drop, Incident::Shutdown, Incident::Deaf];

const ALL: [Incident; 9] = [
    Incident::Cut,
    Incident::Break,
    Incident::Restart,
    Incident::Kill,
    Incident::Drop,
    Incident::Shutdown,
    Incident::Deaf,
    Incident::Jump,
    Incident::Revoke,
];

impl Plan {
    pub(crate) fn draw() -> Self {
        let healthy = chance(300);
        let rate = || if healthy { 0 } else { pick(&[0, 0, 20, 60, 200]) };
        let keys = (0..fastrand::usize(1..=4)).map(|number| KeyPlan {
            key: Key::new(None, &format!("k{number}")).expect("a short word is a key"),
            limit: pick(&[None, None, None, Some(2), Some(3), Some(u32::MAX)]),
        });
        let kinds: &[Incident] = if healthy { &HEALTHY } else { &ALL };
        // The kinds of this run.
        let some: Vec<Incident> = (0..3).map(|_| pick(kinds)).collect();
        Self {
            processes: fastrand::usize(1..=4),
            callers: fastrand::usize(1..=4),
            calls: fastrand::usize(2..=8),
            keys: keys.collect(),
            concurrency: pick(&[1, 3, 4]),
            parts: pick(&[1, 1, 2]),
            wake_ups: fastrand::bool(),
            ttl: Duration::from_millis(pick(&[1000, 2000, 5000])),
            longest_stay: pick(&[3, 50, 400, 4000]),
            longest_pause: pick(&[3, 50, 1000]),
            longest_way: pick(&[1, 3, 10]),
            healthy,
            faults: Faults {
                lost: rate(),
                late: rate(),
                repeated: rate(),
                refused: rate(),
                skipped: rate(),
                slow: rate(),
                lost_wake_ups: rate(),
                repeated_wake_ups: rate(),
            },
            incidents: (0..fastrand::usize(0..=6)).map(|_| pick(&some)).collect(),
        }
    }

    pub(crate) fn limit(&self, key: &Key) -> Option<u32> {
        let same = |plan: &&KeyPlan| plan.key == *key;
        self.keys.iter().find(same).and_then(|plan| plan.limit)
    }

    /// How long a message is on its way when nothing is wrong.
    pub(crate) fn usual_way(&self) -> Duration {
        ms(0..=self.longest_way)
    }
}
