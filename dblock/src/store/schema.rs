//! Schema versions: which tables this build of dblock can work with.
//!
//! The version table has one row: `version`, the schema's version, and `min_client`, the oldest schema
//! version that a client may be built for. A change that older clients can live with raises only `version`,
//! so that they keep working during a rolling deploy.

use super::error::{StoreError, StoreErrorKind};
use super::table::{DEFAULT_TABLE, TableName};

/// The version that the scripts in `migrations/` create.
pub(crate) const SCHEMA_VERSION: i32 = 2;

/// The row of the version table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SchemaVersion {
    pub(crate) version: i32,
    pub(crate) min_client: i32,
}

/// Fails if this client cannot work with the schema that was found.
pub(crate) fn check(found: Option<SchemaVersion>, table: &TableName) -> Result<(), StoreError> {
    check_for(SCHEMA_VERSION, found, table)
}

/// As [`check`], for a client of schema version `client`.
fn check_for(client: i32, found: Option<SchemaVersion>, table: &TableName) -> Result<(), StoreError> {
    let message = match found {
        None => format!(
            "the lock table {table} is not there; build the manager with `auto_migrate(true)`, call \
             `LockManager::migrate` on one from `LockManagerBuilder::start`, or run the \
             script in the folder `migrations/` of the dblock crate, which names the table {DEFAULT_TABLE}"
        ),
        Some(found) if found.version < client => format!(
            "the lock table {table} has schema version {}, older than the {client} that this program \
             needs; call `LockManager::migrate`",
            found.version
        ),
        Some(found) if found.min_client > client => format!(
            "the lock table {table} has schema version {}, which needs clients of version {} or later; this \
             program has {client}: upgrade the dblock crate",
            found.version, found.min_client
        ),
        Some(_) => return Ok(()),
    };
    Err(StoreError::new(StoreErrorKind::Schema, message))
}

/// A script of `migrations/`, rewritten for the configured table. The scripts use the default table names, so
/// that they can be run by hand.
pub(crate) fn script_for(script: &str, table: &TableName, quote: char) -> String {
    script
        .replace("distributed_lock_version", "\u{1}")
        .replace(DEFAULT_TABLE, &table.quoted(quote))
        .replace('\u{1}', &table.quoted_version(quote))
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

    /// Earlier clients follow other rules for the successor.
    #[test]
    fn a_client_of_version_1_is_refused() {
        let table = TableName::parse("ops.locks").unwrap();
        let migrated = Some(SchemaVersion {
            version: 2,
            min_client: 2,
        });
        assert!(check_for(2, migrated, &table).is_ok());
        let message = check_for(1, migrated, &table).unwrap_err().to_string();
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
            script_for("distributed_lock distributed_lock_version", &table, '`'),
            "`ops`.`locks` `ops`.`locks_version`"
        );
    }
}
