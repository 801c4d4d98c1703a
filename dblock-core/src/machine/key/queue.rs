//! The callers of this process that want one key, first in first out. And fairness between processes: how long
//! a process may hand the lock over locally while others want it, and which waiting process asks first for the
//! next place as successor.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uuid::Uuid;

use crate::machine::env::{Env, Time};
use crate::machine::out::Waiter;
use crate::options::LockOptions;

/// Callers in the order in which they came. An operation on one of them costs the logarithm of their number, where it says
/// nothing else.
#[derive(Debug)]
pub(super) struct WaitQueue<A> {
    waiters: BTreeMap<u64, Waiter<A>>,
    deadlines: BTreeSet<(Time, u64)>,
    non_blocking: BTreeSet<u64>,
    last: u64,
}

impl<A> WaitQueue<A> {
    pub(super) fn new() -> Self {
        Self {
            waiters: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            non_blocking: BTreeSet::new(),
            last: 0,
        }
    }

    /// Puts a caller at the end. Returns its number.
    pub(super) fn push(&mut self, waiter: Waiter<A>) -> u64 {
        let number = self.next_number();
        self.insert(number, waiter);
        number
    }

    /// A number that no other caller has had.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn insert(&mut self, number: u64, waiter: Waiter<A>) {
        self.deadlines
            .extend(waiter.call.deadline.map(|deadline| (deadline, number)));
        self.non_blocking
            .extend(waiter.call.is_non_blocking().then_some(number));
        self.waiters.insert(number, waiter);
    }

    /// Puts a caller back where it was.
    pub(super) fn put_back(&mut self, number: u64, waiter: Waiter<A>) {
        self.insert(number, waiter);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Waiter<A>> {
        let waiter = self.waiters.remove(&number)?;
        if let Some(deadline) = waiter.call.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        if waiter.call.is_non_blocking() {
            self.non_blocking.remove(&number);
        }
        Some(waiter)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Waiter<A>> {
        self.waiters.get(&number)
    }

    /// How many callers are before this one. It counts them.
    pub(super) fn ahead_of(&self, number: u64) -> usize {
        self.waiters.range(..number).count()
    }

    /// It looks at all of them.
    pub(super) fn has_owner(&self, owner: Uuid) -> bool {
        self.waiters.values().any(|waiter| waiter.call.owner == owner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn has_non_blocking(&self) -> bool {
        !self.non_blocking.is_empty()
    }

    /// How many callers are willing to wait for a busy key.
    pub(super) fn blocking(&self) -> usize {
        self.waiters.len() - self.non_blocking.len()
    }

    pub(super) fn first(&self) -> Option<(u64, &Waiter<A>)> {
        self.waiters
            .first_key_value()
            .map(|(number, waiter)| (*number, waiter))
    }

    /// How many callers at the head share the lock with this limit. It looks at no more than that.
    pub(super) fn sharing(&self, limit: u32) -> u32 {
        let shares = |waiter: &&Waiter<A>| waiter.call.options.limit == Some(limit);
        let most = usize::try_from(limit).unwrap_or(usize::MAX).min(MOST_ENTRANTS);
        let count = self.waiters.values().take_while(shares).take(most).count();
        u32::try_from(count).unwrap_or(limit)
    }

    /// The earliest deadline of a caller.
    pub(super) fn first_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Takes the first caller, if it passes `test`. Those whose timeout has passed are no longer here.
    pub(super) fn pop_if(&mut self, test: impl FnOnce(&LockOptions) -> bool) -> Option<Waiter<A>> {
        let (number, first) = self.first()?;
        test(&first.call.options).then(|| self.remove(number)).flatten()
    }

    /// Takes a caller whose timeout has passed.
    pub(super) fn pop_overdue(&mut self, now: Time) -> Option<(u64, Waiter<A>)> {
        let (deadline, number) = *self.deadlines.first()?;
        let waiter = (deadline <= now).then(|| self.remove(number)).flatten()?;
        Some((number, waiter))
    }

    /// The number of the first caller, if that wants the lock alone.
    pub(super) fn first_is_alone(&self) -> Option<u64> {
        let (number, first) = self.first()?;
        first.call.options.limit.is_none().then_some(number)
    }

    pub(super) fn first_non_blocking(&self) -> Option<&Waiter<A>> {
        self.get(*self.non_blocking.first()?)
    }

    /// Takes the first non-blocking caller that passes `test`. It looks at those before it.
    pub(super) fn pop_non_blocking(&mut self, test: impl Fn(&Waiter<A>) -> bool) -> Option<Waiter<A>> {
        let mut numbers = self.non_blocking.iter().copied();
        let number = numbers.find(|number| self.get(*number).is_some_and(&test))?;
        self.remove(number)
    }

    /// Takes all callers, or those that hold no other lock.
    pub(super) fn take(&mut self, nested_too: bool) -> Vec<Waiter<A>> {
        let taken = |waiter: &Waiter<A>| nested_too || !waiter.call.nested;
        let numbers = self.waiters.iter().filter(|(_, waiter)| taken(waiter));
        let numbers: Vec<u64> = numbers.map(|(number, _)| *number).collect();
        numbers
            .into_iter()
            .filter_map(|number| self.remove(number))
            .collect()
    }
}

/// How long a row must be locked before a non-blocking caller is refused.
const BUSY_AFTER: Duration = Duration::from_millis(20);
/// As `BUSY_AFTER`, for callers that share: the others that share lock the row again and again, for a moment each.
const BUSY_AFTER_SHARED: Duration = Duration::from_secs(1);

impl<A> Waiter<A> {
    /// When it is refused, if it does not wait, and others have the row locked since then.
    pub(super) fn busy_at(&self, locked_since: Time) -> Time {
        let after = match self.call.options.limit {
            Some(_) => BUSY_AFTER_SHARED,
            None => BUSY_AFTER,
        };
        self.since.max(locked_since) + after
    }
}

/// For how many callers at most the store is asked whether there is room.
const MOST_ENTRANTS: usize = 100;

/// Longest stretch: how long a process may hand the lock over locally.
const LONGEST_STRETCH: Duration = Duration::from_millis(100);

/// Longest stretch of a process that receives wake-ups, while others want the key.
const LONGEST_STRETCH_LISTENING: Duration = Duration::from_millis(10);

/// Back-off after the key was passed on to another process, when the place as successor is free again. A
/// process that was passed over more often backs off for less time.
const AFTER_ANOTHER: Duration = Duration::from_millis(6);

/// How far ahead a busy ask sets `wanted_until` and the end of a place as successor. Longer than any pause
/// between two asks plus a slow statement or two.
pub(super) const WANTED_FOR: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct Fairness {
    /// When the stretch began: since then this process hands the lock over locally while others want the key.
    stretch_since: Option<Time>,
    /// How often the key was passed on to another process while callers of this one waited.
    passed_over: u32,
}

impl Fairness {
    /// The lock came to this process. Returns until when it may be handed over locally.
    pub(super) fn granted(&mut self, wanted: bool, env: &Env<'_>) -> Time {
        self.passed_over = 0;
        self.stretch_since = None;
        self.extended(wanted, env)
    }

    /// The lease was extended. Returns until when it may be handed over locally: for a whole stretch after
    /// this answer if nobody else wants the key, else for the rest of the stretch.
    pub(super) fn extended(&mut self, wanted: bool, env: &Env<'_>) -> Time {
        if !wanted {
            self.stretch_since = None;
            return env.now + LONGEST_STRETCH;
        }
        let length = if env.listening {
            LONGEST_STRETCH_LISTENING
        } else {
            LONGEST_STRETCH
        };
        *self.stretch_since.get_or_insert(env.now) + length
    }

    /// The key was passed on to another process. Returns how long to back off.
    pub(super) fn pause_before_next_ask(&mut self, env: &mut Env<'_>) -> Duration {
        self.passed_over = self.passed_over.saturating_add(1);
        env.jittered(AFTER_ANOTHER / self.passed_over.saturating_pow(2))
    }
}
