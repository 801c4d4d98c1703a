//! The names of keys in etcd.

use dblock::Key;

/// The beginning of all keys of a store.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) prefix: String,
}

impl Keys {
    /// The beginning of the keys of all rows.
    pub(crate) fn rows(&self) -> String {
        format!("{}/lock/", self.prefix)
    }

    pub(crate) fn row(&self, key: &Key) -> String {
        format!("{}/lock/{key}", self.prefix)
    }

    /// Says that somebody waits for a key. Its lease is that of the wait.
    pub(crate) fn wanted(&self, key: &Key) -> String {
        format!("{}/wanted/{key}", self.prefix)
    }

    pub(crate) fn all_wanted(&self) -> String {
        format!("{}/wanted/", self.prefix)
    }
}
