//! The calls for operators: tables, rows, revocation, release by force, purge.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::LockManager;
use crate::Key;
use crate::LockError;
use crate::engine::Permit;
use crate::store::{Finding, InspectFilter, LockRow, Store, StoreError};

/// Time limit of an operator's call, such as `list` or `revoke`.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of a migration. It includes waiting for the migrations of other nodes.
const MIGRATION_TIMEOUT: Duration = Duration::from_mins(1);

impl LockManager {
    /// The calls for operators: what is locked and by whom, the end of a lock by force, the tables, and the
    /// records of `run_once`.
    ///
    /// What a service asks about itself stays here: [`health`](Self::health), which every readiness probe
    /// reads from memory, [`capabilities`](Self::capabilities), [`location`](Self::location) and
    /// [`shutdown`](Self::shutdown).
    pub fn admin(&self) -> Admin<'_> {
        Admin { locks: self }
    }

    pub(crate) async fn check_schema(&self) -> Result<(), LockError> {
        self.admin()
            .ask(None, |store| async move { store.check_schema().await })
            .await
    }
}

/// The calls for operators. From [`LockManager::admin`].
///
/// A key is always the one that was typed, without the manager's namespace: that of a guard, a row or a
/// record. Each call waits for the store for at most 10 seconds, [`migrate`](Self::migrate) for a minute, and
/// [`purge`](Self::purge) for 20 seconds in each of its steps.
#[derive(Debug, Clone, Copy)]
pub struct Admin<'m> {
    pub(crate) locks: &'m LockManager,
}

impl Admin<'_> {
    /// Creates or upgrades the tables. Idempotent, and safe from many nodes at once. When there is nothing to
    /// do, rights to read suffice. On PostgreSQL and MySQL it waits for a transaction that uses the table for a tenth of
    /// a second and a second at a time, because renewals queue behind it; after some tries it is an error.
    ///
    /// # Errors
    /// [`LockError::Store`] when the database cannot be reached or refuses, [`LockError::Shutdown`] after
    /// [`shutdown`](LockManager::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the migration.
    pub async fn migrate(self) -> Result<(), LockError> {
        let migrate = |store: Arc<dyn Store>| async move { store.migrate().await };
        self.locks
            .shared
            .engine
            .run(Permit::Admin, None, MIGRATION_TIMEOUT, migrate)
            .await
    }

    /// The rows of the lock table that `filter` selects, in its order. Only keys of this manager's namespace
    /// are included. A key that an open transaction keeps counts as held where the store sees that in the row,
    /// as PostgreSQL does: [`get`](Self::get) looks closer.
    ///
    /// # Errors
    /// [`LockError::Store`] when the store could not be asked, [`LockError::Shutdown`] after
    /// [`shutdown`](LockManager::shutdown).
    ///
    /// # Cancel safety
    /// Reads only.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::{InspectFilter, LockManager};
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.lock("order:42").acquire().await?;
    /// for row in locks.admin().list(InspectFilter::new().prefix("order:")).await? {
    ///     println!("{} is held by {}", row.key, row.holder);
    ///     # assert_eq!(row.key.as_str(), "order:42");
    /// }
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn list(self, mut filter: InspectFilter) -> Result<Vec<LockRow>, LockError> {
        if let Some(namespace) = self.locks.namespace() {
            let prefix = format!("{namespace}:{}", filter.get_prefix());
            filter = filter.prefix(prefix);
        }
        if let Some(mut after) = filter.get_after().cloned() {
            after.key = self.locks.key(after.key.as_str())?;
            filter = filter.after(after);
        }
        let mut rows = self
            .ask(None, |store| async move { store.inspect(&filter).await })
            .await?;
        for row in &mut rows {
            row.key = row.key.out_of(self.locks.namespace());
        }
        Ok(rows)
    }

    /// The row of `key`. `None` if the key has no row, because it was never locked or its row was purged. The
    /// row stays after a release: [`LockRow::is_held`] says whether somebody holds the lock, and
    /// [`LockRow::transaction`] whether that is a transaction that has not ended. On MySQL and MariaDB that takes a
    /// second statement for a key that reads as free or expired; it locks the row for a moment.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a bad key, [`LockError::Store`] when the store could not be asked,
    /// [`LockError::Shutdown`] after [`shutdown`](LockManager::shutdown).
    ///
    /// # Cancel safety
    /// Reads only.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::LockManager;
    /// let locks = LockManager::connect("memory:").await?;
    /// assert_eq!(locks.admin().get("order:42").await?, None);
    /// let guard = locks.lock("order:42").acquire().await?;
    /// let row = locks.admin().get("order:42").await?.expect("it was taken");
    /// println!("held by {} for {:?} more", row.holder, row.expire_at.since(row.now));
    /// # assert_eq!(row.fence_token, guard.fence_token());
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn get(self, key: impl AsRef<str>) -> Result<Option<LockRow>, LockError> {
        let key = self.locks.key(key.as_ref())?;
        let (typed, whole) = (key.to_typed(), key.clone());
        let found = self
            .ask(Some(&key), |store| async move { store.row(&whole).await })
            .await?;
        Ok(found.map(|mut row| {
            row.key = typed;
            row
        }))
    }

    /// Whether somebody holds the lock on `key`, by a lease or by a transaction that has not ended. This only looks,
    /// and the answer may be out of date when you get it. A key that a statement of dblock's has locked for a
    /// moment does not count as held, although a caller that does not wait may be told that it is busy. Code that must be alone takes the lock, for example with
    /// [`try_acquire`](crate::LockBuilder::try_acquire).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    /// Reads only.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::LockManager;
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.lock("order:42").acquire().await?;
    /// assert!(locks.admin().is_locked("order:42").await?);
    /// guard.release().await?;
    /// assert!(!locks.admin().is_locked("order:42").await?);
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn is_locked(self, key: impl AsRef<str>) -> Result<bool, LockError> {
        Ok(self.get(key).await?.is_some_and(|row| row.is_held()))
    }

    /// Revokes a lock: its lease is no longer lengthened, and its holder is told at the next renewal. A lease
    /// without renewals just ends. The key is free once the holder releases it or the lease ends. Returns
    /// whether the key was held.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a bad key, [`LockError::Store`] when the store could not be asked,
    /// [`LockError::Shutdown`] after [`shutdown`](LockManager::shutdown). Also [`LockError::Store`], of the kind
    /// [`Conflict`](crate::store::StoreErrorKind::Conflict), when an open transaction keeps the key: only its end frees
    /// it. The message says which session it is, as far as that can be seen.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may still be carried out.
    pub async fn revoke(self, key: impl AsRef<str>) -> Result<bool, LockError> {
        let key = self.locks.key(key.as_ref())?;
        tracing::warn!(key = %key.typed(), "revoking a lock");
        let of_store = key.clone();
        self.ask(Some(&key), |store| async move { store.revoke(&of_store).await })
            .await
    }

    /// Frees a lock at once, whoever holds it. Returns whether the key was held.
    ///
    /// **Two owners can then hold the lock**: the former holder goes on until its next renewal, or with
    /// [`renew(false)`](crate::LockOptions::renew) until its lease ends. Its fence token is smaller than the
    /// new owner's, so a resource that checks tokens refuses it.
    ///
    /// # Errors
    /// As [`revoke`](Self::revoke).
    ///
    /// # Cancel safety
    /// As [`revoke`](Self::revoke).
    pub async fn force_release(self, key: impl AsRef<str>) -> Result<bool, LockError> {
        let key = self.locks.key(key.as_ref())?;
        tracing::warn!(key = %key.typed(), "freeing a lock by force");
        let of_store = key.clone();
        self.ask(
            Some(&key),
            |store| async move { store.force_release(&of_store).await },
        )
        .await
    }

    /// Deletes the rows that have been unused for `idle`, and the records that are no longer remembered.
    /// Returns how many it has deleted. It covers the whole table, whatever the namespace. It works in small
    /// steps, with pauses as long as the steps, so that other work can go on. The manager does the same in
    /// the background: [`purge_after`](crate::LockManagerBuilder::purge_after) says what counts as used and
    /// why a purge is safe.
    ///
    /// # Errors
    /// [`LockError::Invalid`] when `idle` is shorter than a day, [`LockError::Store`] when the store could
    /// not be asked, [`LockError::Shutdown`] after [`shutdown`](LockManager::shutdown). Rows deleted before the
    /// error stay deleted.
    ///
    /// # Cancel safety
    /// Dropping the future ends the purge after its current step.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without time, if the purge has more than one step to do.
    pub async fn purge(self, idle: Duration) -> Result<u64, LockError> {
        self.locks.shared.engine.purge(idle).await
    }

    /// Checks what breaks locks in practice: rights, tables, settings that lose commits, standbys, poolers,
    /// wake-ups, the clock. It changes nothing, and takes some ten statements. A
    /// [`Severity::Fault`](crate::Severity::Fault) means that locks do not work, or that a guarantee does not
    /// hold. A store that has nothing to check, such as the memory store, has no findings.
    ///
    /// The tables need not exist, so build the manager with
    /// [`LockManagerBuilder::build_lazy`](crate::LockManagerBuilder::build_lazy).
    ///
    /// # Errors
    /// [`LockError::Store`] when the store could not be asked, [`LockError::Shutdown`] after
    /// [`shutdown`](LockManager::shutdown).
    ///
    /// # Cancel safety
    /// Reads only.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::{LockManager, Severity};
    /// let locks = LockManager::builder_for_url("memory:")?.build_lazy()?;
    /// for finding in locks.admin().diagnose().await? {
    ///     if finding.severity > Severity::Fine {
    ///         println!("{}: {} ({})", finding.check, finding.found, finding.meaning);
    ///     }
    /// }
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn diagnose(self) -> Result<Vec<Finding>, LockError> {
        self.ask(None, |store| async move { store.diagnose().await })
            .await
    }

    /// An error names the `key` that the call is for.
    async fn ask<T, W, F>(self, key: Option<&Key>, work: W) -> Result<T, LockError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<dyn Store>) -> F + Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.locks
            .shared
            .engine
            .run(Permit::Admin, key, ADMIN_TIMEOUT, work)
            .await
    }
}

#[cfg(test)]
#[cfg(all(feature = "postgres", feature = "run_once"))]
mod tests {
    use super::*;
    use crate::Resolution;
    use crate::store::clock::Timestamp;
    use crate::store::{Record, RecordFilter, RecordState};

    fn unreachable() -> LockManager {
        let builder = LockManager::builder_for_url("postgres://nobody@127.0.0.1:1/none").unwrap();
        builder.namespace("app").build_lazy().unwrap()
    }

    fn shown() -> Record {
        let key = Key::new(None, "a").unwrap();
        Record::new(key, RecordState::Failed, Timestamp::EPOCH)
    }

    fn said<T>(result: Result<T, LockError>) -> String {
        result.err().unwrap().to_string()
    }

    #[tokio::test]
    async fn an_error_of_a_call_for_one_key_names_it() {
        let locks = unreachable();
        let admin = locks.admin();
        let engine = locks.engine();
        let key = locks.key("a").unwrap();
        for said in [
            said(admin.get("a").await),
            said(admin.is_locked("a").await),
            said(admin.revoke("a").await),
            said(admin.force_release("a").await),
            said(admin.record::<u8>("a").await),
            said(admin.forget(&shown()).await),
            said(admin.resolve(&shown(), Resolution::RunAgain).await),
            said(engine.row(&key).await),
            said(engine.make_free_row(&key).await),
        ] {
            let expected = "the lock store failed for \"a\"";
            assert!(said.starts_with(expected), "{said}");
        }
        for said in [
            said(admin.list(InspectFilter::new()).await),
            said(admin.records(RecordFilter::new()).await),
            said(admin.migrate().await),
            said(admin.diagnose().await),
        ] {
            assert!(said.starts_with("the lock store failed: "), "{said}");
        }
    }

    #[tokio::test]
    async fn a_call_after_the_shutdown_names_its_key() {
        let locks = unreachable();
        locks.shutdown(Duration::ZERO).await;
        let said = said(locks.admin().get("a").await);
        assert!(said.contains("\"a\""), "{said}");
    }
}
