//! What stores meet on the way to their servers, counted for metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a store has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Event {
    /// A connection was opened in the place of one that had ended.
    Reconnected,
    /// Another server is used than before: a new primary, or another member.
    Moved,
    /// A server has sent a request on to another one, as in a Redis Cluster.
    Redirected,
    /// A session with the servers has begun, as with ZooKeeper.
    SessionBegan,
    /// A session is used no more: it was lost, or has left a request without an answer.
    SessionLost,
    /// A grant uses a lease again that rested, as with etcd.
    LeaseUsedAgain,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Reconnected,
        Self::Moved,
        Self::Redirected,
        Self::SessionBegan,
        Self::SessionLost,
        Self::LeaseUsedAgain,
    ];

    /// The value of the metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reconnected => "reconnected",
            Self::Moved => "moved",
            Self::Redirected => "redirected",
            Self::SessionBegan => "session_began",
            Self::SessionLost => "session_lost",
            Self::LeaseUsedAgain => "lease_used_again",
        }
    }
}

#[derive(Default)]
struct Count {
    all: u64,
    /// So many of them are in the metrics.
    taken: u64,
}

/// By the store's name.
static COUNTS: Mutex<BTreeMap<(&'static str, Event), Count>> = Mutex::new(BTreeMap::new());

/// Something was counted that is not in the metrics.
static IS_NEW: AtomicBool = AtomicBool::new(false);

/// Counts an event of a store. `store` is the name of its [capabilities](super::Capabilities). A manager of this process
/// adds it to the metric `dblock_store_events_total` with its next batch.
pub fn note(store: &'static str, event: Event) {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    counts.entry((store, event)).or_default().all += 1;
    IS_NEW.store(true, Ordering::Release);
}

/// How often stores of this name have met this since the process began.
pub fn counted(store: &'static str, event: Event) -> u64 {
    let counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    counts.get(&(store, event)).map_or(0, |count| count.all)
}

/// What was counted since this was called last.
#[doc(hidden)]
pub fn take() -> Vec<(&'static str, Event, u64)> {
    if !IS_NEW.load(Ordering::Acquire) {
        return Vec::new();
    }
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    IS_NEW.store(false, Ordering::Release);
    let new = |((store, event), count): (&(&'static str, Event), &mut Count)| {
        let times = count.all - std::mem::replace(&mut count.taken, count.all);
        (times > 0).then_some((*store, *event, times))
    };
    counts.iter_mut().filter_map(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_taken_once_and_counts_for_ever() {
        for event in [Event::Moved, Event::Moved, Event::Reconnected] {
            note("here", event);
        }
        assert_eq!(
            take(),
            [("here", Event::Reconnected, 1), ("here", Event::Moved, 2)]
        );
        assert_eq!(take(), []);
        note("here", Event::Moved);
        assert_eq!(take(), [("here", Event::Moved, 1)]);
        assert_eq!(counted("here", Event::Moved), 3);
        assert_eq!(counted("there", Event::Moved), 0);
    }
}
