//! The things that all pages are made from.

use dblock::LockManager;

use crate::access::Access;

/// The locks, and who may change them.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) locks: LockManager,
    pub(crate) access: Access,
}

impl Page {
    /// A key of a row as the manager's calls take it: without the namespace.
    pub(crate) fn short<'k>(&self, key: &'k str) -> &'k str {
        let namespace = self.locks.namespace();
        let rest = namespace.and_then(|namespace| key.strip_prefix(namespace)?.strip_prefix(':'));
        rest.unwrap_or(key)
    }
}
