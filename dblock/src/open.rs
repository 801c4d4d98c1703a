//! The stores of this crate by themselves, for the project's own tests. Programs build a manager instead, and
//! authors of stores have their own. The module is hidden and not behind a feature, so that the tests run
//! what is published.

pub mod memory {
    //! The memory store.

    use crate::store::{LockRow, MemoryStore};

    /// Writes rows past the contract, in the place of those with the same keys.
    pub fn place(store: &MemoryStore, rows: &[LockRow]) {
        store.place(rows);
    }
}

#[cfg(feature = "sqlite")]
pub mod sqlite {
    //! The SQLite store.

    use std::sync::Arc;
    use std::time::Duration;

    use sqlx::SqliteConnection;
    use sqlx::sqlite::SqliteConnectOptions;
    use uuid::Uuid;

    use crate::store::fence::{FenceCheck, FenceSource};
    use crate::store::sqlite::SqliteStore;
    use crate::store::table::TableName;
    use crate::store::{Store, StoreError};
    use crate::{Key, LockError};

    /// A store in the file of `options`. Opens nothing yet.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for an in-memory database and for a table name that is not allowed.
    pub fn open(options: SqliteConnectOptions, table: &str) -> Result<Arc<dyn Store>, LockError> {
        let table = TableName::parse(table).map_err(LockError::invalid)?;
        SqliteStore::check_options(&options, &table).map_err(LockError::invalid)?;
        Ok(Arc::new(SqliteStore::new(options, table)))
    }

    /// The fence check in a transaction of the user's: what is left of the lease, `None` when it is gone.
    ///
    /// # Errors
    /// The database's answer.
    pub async fn verify(
        connection: &mut SqliteConnection,
        store: &dyn Store,
        key: &Key,
        lease_id: Uuid,
        fence_token: i64,
    ) -> Result<Option<Duration>, StoreError> {
        let source = FenceSource::of(store, 0).expect("the SQLite store checks fence tokens");
        let check = FenceCheck {
            source: &source,
            key,
            lease_id,
            fence_token,
        };
        let left = crate::store::sqlite::verify(connection, &[check]).await?;
        Ok(left.into_iter().next().flatten())
    }
}

/// The PostgreSQL store.
#[cfg(feature = "postgres")]
pub mod postgres {
    use std::sync::Arc;

    use crate::LockError;
    use crate::store::Store;
    use crate::store::connect_options::OptionsSource;
    use crate::store::postgres::PostgresStore;
    use crate::store::table::TableName;

    /// A store in the database of `options`. Opens nothing yet.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a table name that is not allowed.
    pub fn open(options: sqlx::postgres::PgConnectOptions, table: &str) -> Result<Arc<dyn Store>, LockError> {
        Ok(Arc::new(PostgresStore::new(
            vec![OptionsSource::fixed(options)],
            TableName::parse(table).map_err(LockError::invalid)?,
        )))
    }
}

/// The MySQL and MariaDB store.
#[cfg(feature = "mysql")]
pub mod mysql {
    use std::sync::Arc;

    use crate::LockError;
    use crate::store::Store;
    use crate::store::connect_options::OptionsSource;
    use crate::store::mysql::MySqlStore;
    use crate::store::table::TableName;

    /// A store in the database of `options`. Opens nothing yet.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a table name that is not allowed.
    pub fn open(options: sqlx::mysql::MySqlConnectOptions, table: &str) -> Result<Arc<dyn Store>, LockError> {
        Ok(Arc::new(MySqlStore::new(
            vec![OptionsSource::fixed(options)],
            TableName::parse(table).map_err(LockError::invalid)?,
            false,
        )))
    }
}
