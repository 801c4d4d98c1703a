//! What a call is drawn to do.

use std::time::Duration;

use dblock::{Key, LockOptions, OnLost};

use crate::chance::{chance, ms, pick};
use crate::checks::Wait;
use crate::world::World;

/// How a call takes its locks, and what it does inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Run,
    /// By the attribute.
    Attribute,
    /// A body with a call for the same key, or for another one.
    Nested,
    OtherInside,
    Panics,
    /// A guard that is released, dropped, or put into a ticket.
    Released,
    Dropped,
    Ticket,
    /// A guard with another ttl, or one that the row must name.
    Extended,
    Pinned,
}

const ALL: [How; 10] = [
    How::Run,
    How::Attribute,
    How::Nested,
    How::OtherInside,
    How::Panics,
    How::Released,
    How::Dropped,
    How::Ticket,
    How::Extended,
    How::Pinned,
];

pub(crate) struct Visit {
    pub(crate) how: How,
    pub(crate) keys: Vec<Key>,
    pub(crate) limit: Option<u32>,
    pub(crate) wait: Wait,
    pub(crate) stay: Duration,
    pub(crate) options: LockOptions,
    pub(crate) may_lose: bool,
    pub(crate) signals: bool,
    pub(crate) tries: bool,
}

impl Visit {
    pub(crate) fn draw(world: &World) -> Self {
        let plan = &world.plan;
        let mut keys = vec![plan.keys[fastrand::usize(..plan.keys.len())].key.clone()];
        if chance(150) {
            keys.push(plan.keys[fastrand::usize(..plan.keys.len())].key.clone());
            keys.sort();
            keys.dedup();
        }
        let limit = plan.limit(&keys[0]).filter(|_| keys.len() == 1 && chance(700));
        let how = pick(&ALL);
        let alone = keys.len() == 1 && limit.is_none();
        let how = if !alone && matches!(how, How::Ticket | How::Pinned) {
            How::Run
        } else {
            how
        };
        let wait = match fastrand::u32(..10) {
            0 | 1 => Wait::No,
            2 => Wait::Forever,
            _ => Wait::For(ms(1..=pick(&[50, 500, 5000, 10_000]))),
        };
        let (renews, capped, signals) = (!chance(50), chance(50), chance(50));
        let mut options = LockOptions::new().ttl(plan.ttl).renew(renews);
        options = match wait {
            Wait::No => options,
            Wait::For(wait) => options.wait(wait),
            Wait::Forever => options.wait_forever(),
        };
        if capped {
            options = options.max_hold(ms(50..=2000));
        }
        if let Some(limit) = limit {
            options = options.limit(limit);
        }
        if signals {
            options = options.on_lost(OnLost::Signal);
        }
        let stay = ms(0..=plan.longest_stay);
        if how == How::Attribute {
            return Self::of_attribute(keys.swap_remove(0), stay);
        }
        Self {
            how,
            keys,
            limit,
            wait,
            stay,
            options,
            may_lose: !renews || capped,
            signals,
            tries: chance(300),
        }
    }

    /// What the attribute says.
    fn of_attribute(key: Key, stay: Duration) -> Self {
        Self {
            how: How::Attribute,
            keys: vec![key],
            limit: None,
            wait: Wait::For(Duration::from_millis(500)),
            stay,
            options: LockOptions::new(),
            may_lose: false,
            signals: false,
            tries: false,
        }
    }

    /// For a call inside of another one.
    pub(crate) fn inner(&self, keys: Vec<Key>, wait: Duration) -> Self {
        Self {
            how: How::Run,
            limit: self.limit.filter(|_| keys == self.keys),
            keys,
            wait: Wait::For(wait),
            stay: self.stay / 2,
            options: self.options.clone().wait(wait),
            may_lose: self.may_lose,
            signals: self.signals,
            tries: false,
        }
    }
}
