//! The stores of this crate by themselves, for the project's own tests. Programs build a manager instead, and
//! authors of stores have their own. The module is hidden and not behind a feature, so that the tests run
//! what is published.

pub mod memory {
    //! The memory store.

    use crate::store::{LockRow, MemoryStore, Outcome, Request, StoreError, WakeUp};

    /// Writes rows past the contract, in the place of those with the same keys.
    pub fn place(store: &MemoryStore, rows: &[LockRow]) {
        store.place(rows);
    }

    /// Carries out a request. Returns what a store with wake-ups tells then, too.
    ///
    /// # Errors
    /// The store's answer.
    pub fn apply(store: &MemoryStore, request: &Request) -> Result<(Outcome, Option<WakeUp>), StoreError> {
        store.apply_telling(request)
    }
}

#[cfg(feature = "sqlite")]
pub mod sqlite {
    //! The SQLite store.

    use std::time::Duration;

    use sqlx::SqliteConnection;
    use uuid::Uuid;

    use crate::Key;
    use crate::store::fence::FenceSource;
    pub use crate::store::sqlite::open;
    use crate::store::{Store, StoreError};

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
        source.verify(connection, key, lease_id, fence_token).await
    }
}

#[cfg(feature = "postgres")]
pub mod postgres {
    //! The PostgreSQL store.

    pub use crate::store::postgres::open;
}

#[cfg(feature = "mysql")]
pub mod mysql {
    //! The MySQL and MariaDB store.

    pub use crate::store::mysql::open;
}
