//! The names of keys in etcd.

use dblock_core::Key;

/// A lock has two keys in etcd, so that somebody can be next. Either can be the holder's: that is the one
/// that was created first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    First,
    Second,
}

impl Slot {
    pub(crate) const BOTH: [Self; 2] = [Self::First, Self::Second];

    pub(crate) fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// The beginning of all keys of a store.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) prefix: String,
}

impl Keys {
    /// The beginning of the keys of all rows in both slots.
    pub(crate) fn all_rows(&self) -> String {
        format!("{}/lock", self.prefix)
    }

    /// The beginning of the keys of all rows in one slot.
    pub(crate) fn rows(&self, slot: Slot) -> String {
        match slot {
            Slot::First => format!("{}/lock/", self.prefix),
            Slot::Second => format!("{}/lock2/", self.prefix),
        }
    }

    pub(crate) fn row(&self, slot: Slot, key: &Key) -> String {
        format!("{}{key}", self.rows(slot))
    }

    /// The slot of a row, and the name of its lock.
    pub(crate) fn read<'a>(&self, etcd_key: &'a [u8]) -> Option<(Slot, &'a [u8])> {
        let mut slots = Slot::BOTH.into_iter();
        slots.find_map(|slot| Some((slot, etcd_key.strip_prefix(self.rows(slot).as_bytes())?)))
    }

    /// Says that somebody waits for a key. Its lease is that of the wait.
    pub(crate) fn wanted(&self, key: &Key) -> String {
        format!("{}/wanted/{key}", self.prefix)
    }

    pub(crate) fn all_wanted(&self) -> String {
        format!("{}/wanted/", self.prefix)
    }
}
