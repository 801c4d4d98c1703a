//! Schema versions: which tables this build of dblock can work with.
//!
//! The version table has one row: `version`, the schema's version, and `min_client`, the oldest schema
//! version that a client may be built for. A change that older clients can live with raises only `version`,
//! so that they keep working during a rolling deploy.

use super::table::{DEFAULT_TABLE, TableName};
use super::{StoreError, StoreErrorKind};

/// The version that the scripts in `migrations/` create.
pub(crate) const SCHEMA_VERSION: i32 = 4;

/// The oldest version whose lock table this client can use for exclusive locks. Version 3 only adds the table of records,
/// and version 4 the column `shared`.
const LOCKS_SINCE: i32 = 2;

/// The first version with a table of records.
const RECORDS_SINCE: i32 = 3;

/// The row of the version table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SchemaVersion {
    pub(crate) version: i32,
    pub(crate) min_client: i32,
}

/// Fails if this client cannot work with the schema that was found.
pub(crate) fn check(found: Option<SchemaVersion>, table: &TableName) -> Result<(), StoreError> {
    check_for(SCHEMA_VERSION, LOCKS_SINCE, found, table)
}

/// Whether all scripts have been run.
pub(crate) fn is_complete(found: Option<SchemaVersion>) -> bool {
    found.is_some_and(|found| found.version >= SCHEMA_VERSION)
}

/// Whether there is a table of records.
pub(crate) fn has_records(found: Option<SchemaVersion>) -> bool {
    found.is_some_and(|found| found.version >= RECORDS_SINCE)
}

/// The error for a missing table of records.
pub(crate) fn no_records(table: &TableName) -> StoreError {
    StoreError::new(
        StoreErrorKind::Schema,
        format!(
            "the table of records {table}_record is not there; call `locks.admin().migrate()`, build the manager with \
             `auto_migrate(true)`, or run the script `…_record.sql` in the folder `migrations/` of the dblock crate"
        ),
    )
}

/// The error for a lock table without the column `shared`.
pub(crate) fn no_shared(table: &TableName) -> StoreError {
    StoreError::new(
        StoreErrorKind::Schema,
        format!(
            "the lock table {table} has no column `shared`, which shared and limited locks need; call \
             `locks.admin().migrate()`, build the manager with `auto_migrate(true)`, or run the script `…_shared.sql` in \
             the folder `migrations/` of the dblock crate"
        ),
    )
}

/// The error for a lock table or a version table without dblock's columns.
pub(crate) fn foreign(table: &TableName) -> StoreError {
    StoreError::new(
        StoreErrorKind::Schema,
        format!(
            "a table {table} (or {table}_version) is there, and it is not dblock's; choose another name in the builder's \
             `table`"
        ),
    )
}

/// As [`check`], for a client of schema version `client` that needs at least version `oldest`.
fn check_for(
    client: i32,
    oldest: i32,
    found: Option<SchemaVersion>,
    table: &TableName,
) -> Result<(), StoreError> {
    let message = match found {
        None => format!(
            "the lock table {table} is not there; build the manager with `auto_migrate(true)`, call \
             `locks.admin().migrate()` on one from `LockManagerBuilder::build_lazy`, or run the \
             script in the folder `migrations/` of the dblock crate, which names the table {DEFAULT_TABLE}"
        ),
        Some(found) if found.version < oldest => format!(
            "the lock table {table} has schema version {}, older than the {oldest} that this program \
             needs; call `locks.admin().migrate()`",
            found.version
        ),
        Some(found) if found.min_client > client => format!(
            "the lock table {table} has schema version {}, which needs clients of version {} or later, and this \
             program has {client}; upgrade the dblock crate",
            found.version, found.min_client
        ),
        Some(_) => return Ok(()),
    };
    Err(StoreError::new(StoreErrorKind::Schema, message))
}

/// A script of `migrations/`, rewritten for [these tables](TableName::all_quoted). The scripts use the default
/// table names, so that they can be run by hand.
pub(crate) fn script_for(script: &str, [locks, version, record]: &[String; 3]) -> String {
    script
        .replace("distributed_lock_version", "\u{1}")
        .replace("distributed_lock_record", "\u{2}")
        .replace(DEFAULT_TABLE, locks)
        .replace('\u{1}', version)
        .replace('\u{2}', record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_names_its_remedy() {
        let table = TableName::parse("ops.locks").unwrap();
        let say = |found| check(found, &table).map_err(|error| error.to_string());
        let version = |version, min_client| Some(SchemaVersion { version, min_client });
        let missing = say(None).unwrap_err();
        assert!(missing.contains("ops.locks is not there") && missing.contains("auto_migrate(true)"));
        assert!(
            missing.ends_with("`migrations/` of the dblock crate, which names the table distributed_lock")
        );
        assert!(say(version(0, 0)).unwrap_err().contains("older"));
        assert!(
            say(version(9, 9))
                .unwrap_err()
                .contains("upgrade the dblock crate")
        );
        assert_eq!(say(version(9, 1)), Ok(()));
        assert_eq!(say(version(SCHEMA_VERSION, 1)), Ok(()));
    }

    #[test]
    fn version_2_is_enough_for_exclusive_locks() {
        let table = TableName::parse("ops.locks").unwrap();
        let found = |version| {
            Some(SchemaVersion {
                version,
                min_client: 2,
            })
        };
        assert!(check(found(2), &table).is_ok() && check(found(1), &table).is_err());
        assert!(!is_complete(found(3)) && is_complete(found(4)) && !is_complete(None));
        assert!(!has_records(found(2)) && has_records(found(3)) && !has_records(None));
        let no_shared = no_shared(&table).to_string();
        assert!(
            no_shared.starts_with("the lock table ops.locks has no column `shared`"),
            "{no_shared}"
        );
        assert!(
            no_shared.contains("call `locks.admin().migrate()`"),
            "{no_shared}"
        );
        let missing = no_records(&table).to_string();
        assert!(
            missing.contains("ops.locks_record is not there; call `locks.admin().migrate()`"),
            "{missing}"
        );
    }

    /// Earlier clients follow other rules for the successor.
    #[test]
    fn a_client_of_version_1_is_refused() {
        let table = TableName::parse("ops.locks").unwrap();
        let migrated = Some(SchemaVersion {
            version: 2,
            min_client: 2,
        });
        assert!(check_for(2, 2, migrated, &table).is_ok());
        let message = check_for(1, 1, migrated, &table).unwrap_err().to_string();
        assert!(
            message.contains("needs clients of version 2 or later"),
            "{message}"
        );
        assert!(message.ends_with("upgrade the dblock crate"), "{message}");
    }

    #[test]
    fn scripts_are_rewritten_for_the_table() {
        let table = TableName::parse("ops.locks").unwrap();
        assert_eq!(
            script_for(
                "distributed_lock distributed_lock_version distributed_lock_record",
                &table.all_quoted('`')
            ),
            "`ops`.`locks` `ops`.`locks_version` `ops`.`locks_record`"
        );
    }
}
