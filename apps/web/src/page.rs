//! The things that all pages are made from.

use dblock::LockManager;

use crate::access::Access;

/// The locks, and who may change them.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) locks: LockManager,
    pub(crate) access: Access,
}
