//! A rolling upgrade from an earlier version: its processes go on while the table is migrated, and beside those of
//! this version.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager};
use tokio::process::Command;
use tokio::time::sleep;

/// How long the migration is tried for among faults.
const MIGRATES_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Upgrade<'a> {
    /// Where the earlier version's programs are.
    from: &'a Path,
    migrated: AtomicBool,
}

impl<'a> Upgrade<'a> {
    /// The table of this version, or that of an earlier one whose programs are in `from`.
    pub(crate) async fn make_table(
        from: Option<&'a Path>,
        locks: &LockManager,
        url: &str,
    ) -> anyhow::Result<Option<Self>> {
        let Some(from) = from else {
            locks.admin().migrate().await?;
            return Ok(None);
        };
        let upgrade = Self {
            from,
            migrated: AtomicBool::new(false),
        };
        upgrade.begin(locks, url).await?;
        Ok(Some(upgrade))
    }

    /// The earlier version's worker.
    pub(crate) fn worker(&self) -> PathBuf {
        self.from.join("dblock-torture")
    }

    pub(crate) fn has_migrated(&self) -> bool {
        self.migrated.load(Ordering::Acquire)
    }

    /// The earlier version makes its table, in which this one must refuse to share a lock.
    async fn begin(&self, locks: &LockManager, url: &str) -> anyhow::Result<()> {
        let mut command = Command::new(self.from.join("dblock"));
        command.args(["--url", url, "migrate"]).kill_on_drop(true);
        let made = command.status().await.context("starting the earlier dblock")?;
        ensure!(
            made.success(),
            "the earlier version did not make its table: {made}"
        );
        match locks.lock("upgrade").shared().try_acquire().await {
            Err(LockError::Store { source, .. }) if source.kind() == StoreErrorKind::Schema => {
                eprintln!("before the migration: {source}");
                Ok(())
            }
            other => bail!(
                "this version shares locks in the table of the earlier one, or refuses otherwise: {other:?}"
            ),
        }
    }

    /// Migrates the table under the earlier version's processes.
    pub(crate) async fn migrate(&self, locks: &LockManager, after: Duration) -> anyhow::Result<()> {
        sleep(after).await;
        let since = Instant::now();
        while let Err(error) = locks.admin().migrate().await {
            ensure!(
                since.elapsed() < MIGRATES_WITHIN,
                "the table was not migrated: {error}"
            );
            eprintln!("not migrated yet: {error}");
            sleep(Duration::from_millis(100)).await;
        }
        self.migrated.store(true, Ordering::Release);
        eprintln!("migrated within {:?}", since.elapsed());
        Ok(())
    }
}
