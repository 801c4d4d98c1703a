//! How a lock is taken: the one place that says which durations are allowed.

use std::time::Duration;

use crate::duration;
use crate::error::LockError;
use crate::waiting::{OnWait, Waiting};

/// How a lock is taken and kept. The defaults are a ttl of 30 seconds, no waiting, renewal on, and a body
/// that is stopped when its lease is lost.
///
/// ```
/// # use dblock_core as dblock;
/// use std::time::Duration;
/// use dblock::LockOptions;
///
/// let options = LockOptions::new().ttl(Duration::from_secs(10)).wait(Duration::from_secs(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct LockOptions {
    #[doc(hidden)]
    pub ttl: Duration,
    #[doc(hidden)]
    pub wait: Wait,
    #[doc(hidden)]
    pub renew: bool,
    #[doc(hidden)]
    pub on_lost: OnLost,
    #[doc(hidden)]
    pub max_hold: Option<Duration>,
    #[doc(hidden)]
    pub hold_min: Option<Duration>,
    /// Shares the lock, while fewer than this are inside. `None` wants it alone.
    #[doc(hidden)]
    pub limit: Option<u32>,
    #[doc(hidden)]
    pub function: Option<&'static str>,
    #[doc(hidden)]
    pub on_wait: Option<OnWait>,
}

/// The limit of a shared lock that has none.
pub(crate) const NO_LIMIT: u32 = u32::MAX;

/// How long an acquire may take in all.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: a busy lock is an error at once.
    No,
    /// At most this long, store time included.
    For(Duration),
    /// Until the lock is free.
    Forever,
}

/// The fate of the body when its lease is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// The body's future is dropped and the call returns [`LockError::Lost`]. A body that is not async goes on to its end
    /// before the call returns that.
    #[default]
    Cancel,
    /// The body goes on, and learns of the loss by `CurrentLock::lost`. Somebody
    /// else may then hold the lock beside it. The call returns the body's value, and not [`LockError::Lost`].
    Signal,
}

impl LockOptions {
    /// The shortest ttl. A shorter lease could not be renewed safely: the margin and a slow commit eat it up.
    pub const MIN_TTL: Duration = duration::MIN_TTL;

    /// The longest ttl, wait, `max_hold` or `hold_min`: 30 days. A longer one is probably a mistake, and
    /// refused.
    pub const MAX_DURATION: Duration = duration::MAX;

    /// The ttl where none is given.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

    /// The defaults.
    pub fn new() -> Self {
        Self {
            ttl: Self::DEFAULT_TTL,
            wait: Wait::No,
            renew: true,
            on_lost: OnLost::Cancel,
            max_hold: None,
            hold_min: None,
            limit: None,
            function: None,
            on_wait: None,
        }
    }

    /// Length of the lease. When this process dies, others can acquire the lock after at most this time. 1
    /// second to 30 days. Default: 30 seconds.
    #[inline]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long the acquire may take in all, including the time that the store takes to answer. Zero, the
    /// default, does not wait for a busy lock, and gives the store 5 seconds to answer. At most 30 days.
    #[inline]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = if wait.is_zero() { Wait::No } else { Wait::For(wait) };
        self
    }

    /// Waits until the lock is free, however long that takes. The acquire refuses it while the call chain
    /// holds another key: two chains could then wait for each other for good.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Wait::Forever;
        self
    }

    /// Whether the lease is renewed, after each third of its ttl. Without renewal the body has one ttl, less
    /// a margin of a twentieth (at least 50 ms). Default: yes.
    #[inline]
    pub fn renew(mut self, renew: bool) -> Self {
        self.renew = renew;
        self
    }

    /// Sets what happens to the body when the lease is lost. Default: [`OnLost::Cancel`].
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// The longest time that the lock may be held, renewals included. After that it is lost with
    /// [`LostReason::MaxHold`](crate::LostReason::MaxHold). More than zero, at most 30 days. Default: no
    /// limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Keeps the lock busy for at least this long after the grant, even when the body ends sooner. The call
    /// returns as soon as this is written to the row, so the key stays busy even if the process ends right
    /// after. If the store is slow or down, the lease may end before that write. The key is then free at the
    /// lease's end. It is for nodes that run the same job on a schedule: a node whose clock is late finds the
    /// lock busy. More than zero, at most 30 days and at most `max_hold`. Default: none.
    pub fn hold_min(mut self, hold_min: Duration) -> Self {
        self.hold_min = Some(hold_min);
        self
    }

    /// Shares the lock: calls that share it run beside each other, and beside no call that wants it alone. A call
    /// waits for those that came before it, so neither kind keeps the other out for good. The fence tokens of those
    /// who share are equal, so they put nobody in order. Refused with several keys, `hold_min`, tickets,
    /// transactions that take or check the lock, and by stores without
    /// [`Capabilities::shares`](crate::store::Capabilities::shares). Default: alone.
    #[inline]
    pub fn shared(mut self) -> Self {
        self.limit.get_or_insert(NO_LIMIT);
        self
    }

    /// Shares the lock with fewer than `limit` others: at most so many calls run at once, in all processes together.
    /// Each call counts all that share the key, whatever their limits are, and enters while there are fewer than its
    /// own. 1 to 4 billion; otherwise as [`shared`](Self::shared). Default: alone.
    #[inline]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Calls `told` about once a second while the acquire waits, for example to log who holds the lock. It runs in the
    /// task that waits: it must not block, and if it panics, so does the call. The first time is after one to two seconds, so
    /// a shorter wait does not call it, and neither does a call that has its turn to take the key in its transaction. Default: none.
    ///
    /// ```
    /// # use dblock_core as dblock;
    /// use std::time::Duration;
    /// use dblock::LockOptions;
    ///
    /// let options = LockOptions::new().wait(Duration::from_secs(60)).on_wait(|waiting| {
    ///     let holder = waiting.holder.as_ref().map_or("somebody", |holder| &holder.name);
    ///     eprintln!("waiting for {:?} since {:?}: {holder} has it", waiting.key, waiting.waited);
    /// });
    /// ```
    pub fn on_wait(mut self, told: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(OnWait::new(told));
        self
    }

    /// The path of the function that takes the lock. It appears in the row's `holder` column, for people.
    pub fn function(mut self, path: &'static str) -> Self {
        self.function = Some(path);
        self
    }

    /// Refuses options that cannot work, before anything is sent.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), LockError> {
        let named = [
            ("ttl", Some(self.ttl)),
            (
                "wait",
                if let Wait::For(wait) = self.wait {
                    Some(wait)
                } else {
                    None
                },
            ),
            ("max_hold", self.max_hold),
            ("hold_min", self.hold_min),
        ];
        for (name, value) in named {
            let Some(value) = value else { continue };
            if value.is_zero() {
                return Err(LockError::invalid(format!(
                    "{name} is zero; give it a length, such as 30 seconds"
                )));
            }
            if value > Self::MAX_DURATION {
                return Err(LockError::invalid(format!(
                    "{name} is longer than 30 days, the longest allowed"
                )));
            }
        }
        if self.ttl < Self::MIN_TTL {
            return Err(LockError::invalid(format!(
                "ttl is {:?}; a lease shorter than {:?} cannot be renewed safely",
                self.ttl,
                Self::MIN_TTL
            )));
        }
        if self.limit == Some(0) {
            return Err(LockError::invalid(
                "the limit is 0, so nobody could get the lock; give at least 1",
            ));
        }
        if self.limit.is_some() && self.hold_min.is_some() {
            return Err(LockError::invalid(
                "hold_min is refused with a shared or limited lock: others run beside the call; leave one of the two \
                 out",
            ));
        }
        if let (Some(max_hold), Some(hold_min)) = (self.max_hold, self.hold_min)
            && max_hold < hold_min
        {
            return Err(LockError::invalid(format!(
                "max_hold is {max_hold:?}, which ends the lock before hold_min, {hold_min:?}, is over"
            )));
        }
        Ok(())
    }
}

impl Default for LockOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// How much earlier a lease ends for its holder than for the database: max(ttl / 20, 50 ms).
#[doc(hidden)]
pub fn margin(ttl: Duration) -> Duration {
    (ttl / 20).max(Duration::from_millis(50))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_bounds_are_valid() {
        let longest = LockOptions::MAX_DURATION;
        for good in [
            LockOptions::new(),
            LockOptions::new().ttl(LockOptions::MIN_TTL),
            LockOptions::new().ttl(longest).wait(longest),
            LockOptions::new().max_hold(longest).hold_min(longest),
            LockOptions::new().shared().max_hold(longest),
        ] {
            assert!(good.check().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn options_are_set_one_by_one() {
        let options = LockOptions::new().wait_forever().on_lost(OnLost::Signal);
        assert_eq!((options.wait, options.on_lost), (Wait::Forever, OnLost::Signal));
        let options = options.function("app::settle").ttl(Duration::from_secs(2));
        assert_eq!(
            (options.wait, options.function),
            (Wait::Forever, Some("app::settle"))
        );
    }

    #[test]
    fn bad_durations_are_refused() {
        let day = Duration::from_hours(24);
        for bad in [
            LockOptions::new().ttl(Duration::ZERO),
            LockOptions::new().ttl(Duration::from_millis(999)),
            LockOptions::new().ttl(Duration::MAX),
            LockOptions::new().wait(day * 31),
            LockOptions::new().max_hold(Duration::ZERO),
            LockOptions::new().hold_min(Duration::MAX),
            LockOptions::new().max_hold(day).hold_min(day * 2),
            LockOptions::new().limit(0),
            LockOptions::new().shared().hold_min(day),
        ] {
            assert!(matches!(bad.check(), Err(LockError::Invalid { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_length_beyond_all_reason_is_not_spelt_out() {
        let refused = LockOptions::new().wait(Duration::MAX).check().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "wait is longer than 30 days, the longest allowed"
        );
    }

    #[test]
    fn margin_is_a_twentieth_but_at_least_50_ms() {
        assert_eq!(margin(Duration::from_secs(30)), Duration::from_millis(1500));
        assert_eq!(margin(LockOptions::MIN_TTL), Duration::from_millis(50));
    }
}
