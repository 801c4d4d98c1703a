//! The records that a store keeps.

use super::{Record, Records, Store, StoreError, StoreErrorKind, StoreFuture};
use crate::Key;

/// The records of `store`.
pub(crate) fn kept_by(store: &dyn Store) -> Result<&dyn Records, StoreError> {
    store.records().ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Unsupported,
            "this store keeps no records, so it cannot run anything once; use PostgreSQL, MySQL, MariaDB or SQLite",
        )
    })
}

/// [`Records::read_all`] of `store`.
pub(crate) fn read_all<'a>(
    store: &'a dyn Store,
    keys: &'a [Key],
) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
    match kept_by(store) {
        Ok(records) => records.read_all(keys),
        Err(error) => Box::pin(async move { vec![Err(error); keys.len()] }),
    }
}
