//! Calls whose lock ends with their transaction: the library's, or the caller's own.
//!
//! Each counts in the database ([`Counter`]), so that the order of the commits shows. The end of its section is
//! written before the commit, because others may enter from then on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock::fence::{Database, FenceConnection};
use dblock::store::StoreErrorKind;
use dblock::{LockError, LockOptions, begin, distributed_lock};
use sqlx::{AssertSqlSafe, Executor, FromRow, IntoArguments, Pool, Transaction};
use tokio::time::{sleep, timeout};

use super::Worker;
use super::call::{Asked, Origin};
use super::mix::Plan;
use super::section::{Planned, RunningSection};
use crate::bank::Bank;
use crate::counter::Counter;
use crate::history::{Event, Form};
use crate::once::STALLED;
use crate::payment::Failure;

/// How long a statement of the caller's own may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How long a call may take beyond its wait. A connection that a fault has silenced never answers.
const CALL_TIMEOUT: Duration = Duration::from_secs(12);

/// How long a transaction goes on after the call under its lock has returned.
const GOES_ON: Duration = Duration::from_millis(5);

/// A call on one database.
pub(crate) struct InTransaction<'a, DB: sqlx::Database> {
    pub(crate) worker: &'a Arc<Worker>,
    pub(crate) pool: &'a Pool<DB>,
    pub(crate) call: u64,
    pub(crate) plan: &'a Plan,
}

impl Worker {
    /// Makes a call whose lock ends with its transaction. `None` if it took too long and was dropped.
    pub(super) async fn call_in_transaction(
        self: &Arc<Self>,
        bank: &Bank,
        call: u64,
        plan: &Plan,
    ) -> Option<Result<(), LockError>> {
        let made = Box::pin(bank.in_transaction(self, call, plan));
        let made = timeout(plan.wait + CALL_TIMEOUT, made).await.ok()?;
        if plan.counts {
            self.conclude(call, plan.form, &made);
        }
        Some(match answer(made) {
            // A transaction does not re-enter what ends with another one.
            Err(LockError::Store { source, .. })
                if !plan.counts && source.kind() == StoreErrorKind::Unsupported =>
            {
                Ok(())
            }
            answer => answer,
        })
    }

    /// Writes down whether the work of a transaction stands, if the caller can know it.
    pub(super) fn conclude(&self, call: u64, form: Form, made: &Result<(), Failure>) {
        let committed = match made {
            Ok(()) => true,
            // That of the caller's own commit, perhaps.
            Err(Failure::Database) if form == Form::InTransaction => return,
            // That of the library's commit, perhaps.
            Err(Failure::Lock(LockError::Store { source, .. }))
                if form == Form::Transaction && !source.is_retryable() =>
            {
                return;
            }
            Err(_) => false,
        };
        self.journal.write(Event::Concluded { call, committed });
    }

    /// Waits here for the kill, if that is planned.
    async fn stall_in_transaction(&self) {
        if self.stalls_in_transaction.load(Ordering::Relaxed) {
            println!("{STALLED}");
            std::future::pending::<()>().await;
        }
    }
}

/// The answer to the call. After a conflict, and when the database fails, a caller could try again.
pub(super) fn answer(made: Result<(), Failure>) -> Result<(), LockError> {
    match made {
        Err(Failure::Lock(LockError::Store { source, .. })) if source.kind() == StoreErrorKind::Conflict => {
            Ok(())
        }
        Err(Failure::Lock(error)) => Err(error),
        Ok(()) | Err(Failure::Database | Failure::Planned) => Ok(()),
    }
}

impl<DB> InTransaction<'_, DB>
where
    DB: sqlx::Database,
    Transaction<'static, DB>: FenceConnection,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    (i64,): for<'r> FromRow<'r, DB::Row>,
    DB::Arguments: IntoArguments<DB>,
{
    /// Makes the call. One that fails may have been committed.
    pub(crate) async fn make(&self) -> Result<(), Failure> {
        if self.plan.form == Form::InTransaction {
            return self.in_own().await;
        }
        let options = LockOptions::new().ttl(self.plan.ttl).wait(self.plan.wait);
        let lock = self.worker.locks.lock(&self.plan.key).options(&options);
        let call = lock.transaction(self.pool, async |mut tx| {
            let mut section = self.enter(self.call);
            section.stepping(self.work(&section, &mut tx)).await?;
            section.returned = true;
            if self.plan.course.rolls_back {
                return Err(Failure::Planned);
            }
            Ok(())
        });
        call.await
    }

    async fn in_own(&self) -> Result<(), Failure> {
        let course = self.plan.course;
        let begun = timeout(TIMEOUT, begin(self.pool)).await;
        let mut tx = begun.map_err(|_| Failure::Database)??;
        if course.reads_first {
            timeout(TIMEOUT, self.read_first(&mut tx))
                .await
                .map_err(|_| Failure::Database)??;
        }
        let mut section = self.under_lock(&mut tx).await?;
        let rest = async {
            sleep(GOES_ON).await;
            if course.calls_again {
                self.call_again(&mut tx).await?;
            }
            Ok::<_, Failure>(())
        };
        section.stepping(rest).await?;
        section.returned = true;
        drop(section);
        if course.rolls_back {
            tx.rollback().await?;
            return Err(Failure::Planned);
        }
        Ok(tx.commit().await?)
    }

    /// Takes the snapshot on which the transaction goes on.
    async fn read_first(&self, tx: &mut Transaction<'static, DB>) -> Result<(), Failure> {
        if tx.database() == Database::Postgres {
            let set = sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ");
            set.execute(&mut **tx).await?;
        }
        self.counter().read(tx).await?;
        Ok(())
    }

    /// The section goes on after the return.
    #[distributed_lock(
        key = self.plan.key,
        ttl = self.plan.ttl,
        wait = self.plan.wait,
        manager = self.worker.locks,
        tx = tx
    )]
    async fn under_lock(&self, tx: &mut Transaction<'static, DB>) -> Result<RunningSection<'_>, Failure> {
        let section = self.enter(self.call);
        section.stepping(self.work(&section, tx)).await?;
        Ok(section)
    }

    /// Makes a second call with the same key in the transaction, after the first has returned.
    async fn call_again(&self, tx: &mut Transaction<'static, DB>) -> Result<(), Failure> {
        let plan = Plan::bare(self.plan.key.clone(), Form::InTransaction, self.plan.ttl);
        let asked = Asked::write_down(self.worker, &plan, Origin::Again(self.call));
        let made = self.under_lock_again(asked.number, tx).await;
        let failed = made.is_err();
        asked.answer(&answer(made));
        if failed { Err(Failure::Database) } else { Ok(()) }
    }

    #[distributed_lock(
        key = self.plan.key,
        ttl = self.plan.ttl,
        wait = self.plan.wait,
        manager = self.worker.locks,
        tx = tx
    )]
    async fn under_lock_again(&self, call: u64, tx: &mut Transaction<'static, DB>) -> Result<(), Failure> {
        let mut section = self.enter(call);
        section.stepping(sleep(GOES_ON)).await;
        section.returned = true;
        Ok(())
    }

    fn enter(&self, call: u64) -> RunningSection<'_> {
        let lock = dblock::current().expect("a section holds its lock");
        RunningSection::begin(
            self.worker,
            call,
            &self.plan.key,
            lock.owner(),
            lock.fence_token(),
        )
    }

    fn counter(&self) -> Counter<'_> {
        Counter {
            key: &self.plan.key,
            id: self.worker.process.id_of(self.call),
        }
    }

    /// The work under the lock.
    async fn work(
        &self,
        section: &RunningSection<'_>,
        tx: &mut Transaction<'static, DB>,
    ) -> Result<(), Failure> {
        let counter = self.counter();
        let mut count = None;
        if self.plan.counts {
            count = Some(counter.read(tx).await?);
        }
        let ends = self.end_session_later(tx).await?;
        self.worker.pass_time(section, self.plan).await;
        if let Some(inner) = &self.plan.section.inner {
            if self.plan.section.spawns {
                self.worker.spawn(inner, self.call);
            } else {
                let within = Origin::Within(self.call);
                self.worker.call(inner, within, None).await;
            }
        }
        if let Some(count) = count {
            counter.write(count + 1, section.token, tx).await?;
        }
        self.worker.stall_in_transaction().await;
        if self.plan.section.panics {
            std::panic::panic_any(Planned);
        }
        drop(ends);
        Ok(())
    }

    /// Ends the session of the transaction after a while, if that is planned and the result is not dropped first.
    async fn end_session_later(
        &self,
        tx: &mut Transaction<'static, DB>,
    ) -> Result<Option<AbortOnDrop>, Failure> {
        let ask = match tx.database() {
            Database::Postgres => "SELECT CAST(pg_backend_pid() AS bigint)",
            Database::MySql => "SELECT CAST(CONNECTION_ID() AS SIGNED)",
            _ => return Ok(None),
        };
        let (Some(after), Some(bank)) = (self.plan.course.session_ends_after, self.worker.bank.clone())
        else {
            return Ok(None);
        };
        let session: i64 = sqlx::query_scalar(AssertSqlSafe(ask))
            .fetch_one(&mut **tx)
            .await?;
        let (worker, call) = (Arc::clone(self.worker), self.call);
        let ends = tokio::spawn(async move {
            sleep(after).await;
            worker.journal.write(Event::SessionEnds { call });
            // The administrator's connection may fail, too.
            let _ = bank.end_session(session).await;
        });
        Ok(Some(AbortOnDrop(ends.abort_handle())))
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
