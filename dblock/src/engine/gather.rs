//! When a batch waits for more.
//!
//! A batch costs a commit, however few requests are in it. Callers whose requests were answered together tend to
//! come back together; three rules keep them together, so that they go on sharing commits. They cost a moment at
//! most, and nothing where they do not pay.
//!
//! - After the answers of a batch, the engine waits for what their callers want next ([`Gather`]). In a crowd it does
//!   not: there the next batch is ready, and goes out before the answers of the last one are looked at.
//! - A batch of acquires waits for one of releases that is on its way and no smaller, and the other way round
//!   ([`waits_for`]): its callers are about to want the same. In a crowd it goes out as soon as that one is back.
//! - A key that goes round in this process, while others want it, is not released before those who have just had it
//!   got the same moment to come back: it would be a while before this process has it again.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

/// So many callers are waited for: one has nobody to share with, and a crowd shares anyway.
const SIZES: RangeInclusive<usize> = 2..=64;

/// How long the callers of a batch get to come back.
const GATHER: Duration = Duration::from_micros(100);

/// How long a batch waits for another one: a commit takes less, unless something is wrong.
const HOLD_BACK: Duration = Duration::from_millis(2);

/// How often at most no gathering is tried after it was in vain.
const MOST_SKIPPED: u32 = 256;

/// Until when a batch of `ready` requests is held back that has been so `since` then, while one of `other`
/// requests of the opposite kind is on its way.
pub(super) fn waits_for(ready: usize, other: usize, since: Instant) -> Option<Instant> {
    (other > 2 && ready <= other).then(|| since + HOLD_BACK)
}

/// Takes what comes within a moment, until there are `count`. It keeps the thread: no timer is that fine.
pub(super) fn wait_for<T>(count: usize, inbox: &mut mpsc::UnboundedReceiver<T>, into: &mut Vec<T>) {
    let since = Instant::now();
    while into.len() < count && since.elapsed() < GATHER {
        match inbox.try_recv() {
            Ok(command) => into.push(command),
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// Waiting for callers to come back. Where their sections take longer, that is soon given up.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// Answers that were given since the last time.
    answered: usize,
    skip: u32,
    penalty: u32,
}

impl Gather {
    pub(super) fn answered(&mut self, count: usize) {
        self.answered += count;
    }

    /// Waits for the callers that were answered since the last time.
    pub(super) fn gather<T>(&mut self, inbox: &mut mpsc::UnboundedReceiver<T>, into: &mut Vec<T>) {
        let expected = std::mem::take(&mut self.answered);
        if !SIZES.contains(&expected) || into.len() >= expected {
            return;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        wait_for(expected, inbox, into);
        if into.len() * 2 >= expected {
            self.penalty = 0;
        } else {
            self.penalty = (self.penalty * 2).clamp(1, MOST_SKIPPED);
            self.skip = self.penalty;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_what_is_there_and_gives_up_where_nothing_comes() {
        let (send, mut inbox) = mpsc::unbounded_channel();
        let mut gather = Gather::default();
        let mut commands = Vec::new();
        (0..5).for_each(|number| send.send(number).unwrap());
        gather.answered(5);
        gather.gather(&mut inbox, &mut commands);
        assert_eq!(commands, [0, 1, 2, 3, 4]);

        let mut tries = 0;
        for _ in 0..100 {
            commands.clear();
            gather.answered(5);
            let skipping = gather.skip > 0;
            gather.gather(&mut inbox, &mut commands);
            tries += u32::from(!skipping);
        }
        assert!(tries < 10, "{tries}");
    }

    #[test]
    fn one_answer_and_many_are_not_waited_for() {
        let (send, mut inbox) = mpsc::unbounded_channel();
        send.send(()).unwrap();
        for count in [0, 1, 65] {
            let mut gather = Gather::default();
            let mut commands = Vec::new();
            gather.answered(count);
            gather.gather(&mut inbox, &mut commands);
            assert!(commands.is_empty());
        }
    }

    #[test]
    fn a_batch_waits_for_a_larger_one_but_not_for_long() {
        let now = Instant::now();
        assert_eq!(waits_for(3, 8, now), Some(now + HOLD_BACK));
        assert_eq!(waits_for(9, 8, now), None);
        assert_eq!(waits_for(1, 1, now), None);
    }
}
