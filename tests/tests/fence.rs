//! The suite for drivers passes over sqlx, and fails for drivers that do something else.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use dblock::fence::{Database, DriverError, FenceConnection, FenceStatement};
use dblock::store::{Store, StoreFuture};
use dblock_conformance::{End, FenceFixture, Fixture};
use dblock_tests::backend::Place;
use dblock_tests::counting::Counting;
use dblock_tests::{Backend, Kind, on_every_store};
use sqlx::PgPool;

/// One line a database.
macro_rules! fence_conformance_of {
    ($store:ident, $kind:ident) => {
        mod $store {
            dblock_conformance::fence_conformance!(
                dblock_tests::Backend::new(dblock_tests::Kind::$kind).await
            );
        }
    };
}

fence_conformance_of!(postgres, Postgres);
fence_conformance_of!(mysql, MySql);
fence_conformance_of!(sqlite, Sqlite);

on_every_store!(databases: a_check_is_one_statement_and_a_release_at_most_two);
on_every_store!(servers: random_takes_are_carried_out_by_the_rules);

async fn random_takes_are_carried_out_by_the_rules(backend: Backend) {
    dblock_conformance::random_takes_are_carried_out_by_the_rules(&backend).await;
}

/// Each is a round trip.
async fn a_check_is_one_statement_and_a_release_at_most_two(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("key").acquire().await.unwrap();
    let release = if backend.kind() == Kind::MySql { 2 } else { 1 };
    let body = async |inner: &mut dyn FenceConnection| {
        let mut counting = Counting::new(inner);
        guard.verify_in(&mut counting).await.unwrap();
        assert_eq!(counting.statements, 1);
        guard.release_in(&mut counting).await.unwrap();
        assert_eq!(counting.statements, 1 + release);
        End::Commit
    };
    backend.transaction(body).await;
}

/// The fault of a driver.
#[derive(Debug, Clone, Copy)]
enum Fault {
    AnswersNothing,
    AnswersInAnotherSession,
    SwallowsErrors,
    HidesTheCode,
    RunsTwice,
}

/// A driver with a fault, on PostgreSQL.
struct Faulty {
    backend: Backend,
    fault: Fault,
}

impl Faulty {
    fn pool(&self) -> &PgPool {
        let Place::Postgres(pool, _) = self.backend.place() else {
            unreachable!()
        };
        pool
    }
}

impl Fixture for Faulty {
    async fn store(&self) -> Arc<dyn Store> {
        self.backend.store().await
    }
}

impl FenceFixture for Faulty {
    async fn transaction(&self, body: impl AsyncFnOnce(&mut dyn FenceConnection) -> End) {
        let mut user = dblock::begin(self.pool()).await.unwrap();
        let (mut other, fault) = (None, self.fault);
        let inner: &mut dyn FenceConnection = match fault {
            Fault::AnswersInAnotherSession => &mut **other.insert(self.pool().acquire().await.unwrap()),
            _ => &mut user,
        };
        match body(&mut Wrong { inner, fault }).await {
            End::Commit => user.commit().await.unwrap(),
            End::Rollback => user.rollback().await.unwrap(),
        }
    }
}

struct Wrong<'c> {
    inner: &'c mut dyn FenceConnection,
    fault: Fault,
}

impl FenceConnection for Wrong<'_> {
    fn database(&self) -> Database {
        self.inner.database()
    }

    fn query<'a>(
        &'a mut self,
        statement: &'a FenceStatement,
    ) -> StoreFuture<'a, Result<Vec<String>, DriverError>> {
        Box::pin(async move {
            if matches!(self.fault, Fault::RunsTwice) {
                self.inner.query(statement).await?;
            }
            let answer = self.inner.query(statement).await;
            match (self.fault, answer) {
                (Fault::AnswersNothing, Ok(_)) | (Fault::SwallowsErrors, Err(_)) => Ok(Vec::new()),
                (Fault::HidesTheCode, Err(error)) => Err(DriverError::refused(error.to_string())),
                (_, answer) => answer,
            }
        })
    }

    fn execute<'a>(&'a mut self, statement: &'a FenceStatement) -> StoreFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move {
            let insert = statement.sql().starts_with("INSERT");
            if insert && matches!(self.fault, Fault::RunsTwice) {
                self.inner.execute(statement).await?;
            }
            let answer = self.inner.execute(statement).await;
            match (self.fault, answer) {
                (Fault::AnswersNothing, Ok(_)) | (Fault::SwallowsErrors, Err(_)) => Ok(0),
                (Fault::HidesTheCode, Err(error)) => Err(DriverError::refused(error.to_string())),
                (_, answer) => answer,
            }
        })
    }
}

/// Each check that a fault fails, and what it says then.
macro_rules! faults {
    ($($test:ident: $fault:ident fails $check:ident with $message:literal;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(backend) = Backend::new(Kind::Postgres).await else {
                    return;
                };
                let faulty = Faulty { backend, fault: Fault::$fault };
                let check = std::panic::AssertUnwindSafe(dblock_conformance::$check(&faulty));
                let failed = futures_util::FutureExt::catch_unwind(check).await;
                let panic = failed.expect_err("the suite must fail");
                let message = panic.downcast_ref::<String>().expect("a message with what was found");
                assert!(message.contains($message), "{message}");
            }
        )*
    };
}

faults! {
    no_answer_at_all: AnswersNothing fails a_statement_answers_what_the_database_says
        with "the driver does not give back the rows that the database answers with";
    no_count_of_rows: AnswersNothing fails a_statement_runs_once_in_the_transaction
        with "the driver does not say how many rows a statement wrote";
    no_answer_to_a_check: AnswersNothing fails a_checked_lock_keeps_its_row_until_the_transaction_ends
        with "the transaction does not see this lease";
    check_in_another_session: AnswersInAnotherSession fails a_checked_lock_keeps_its_row_until_the_transaction_ends
        with "did not run in the transaction";
    release_in_another_session: AnswersInAnotherSession fails a_release_in_a_transaction_takes_effect_with_the_commit
        with "did not run in the transaction";
    rollback_in_another_session: AnswersInAnotherSession fails a_release_that_is_rolled_back_has_not_been
        with "did not run in the transaction";
    a_swallowed_error: SwallowsErrors fails a_statement_that_fails_is_an_error_with_the_databases_code
        with "the driver swallows an error";
    a_swallowed_conflict: SwallowsErrors fails a_deadlock_is_retryable
        with "the driver swallows the database's error";
    a_hidden_code: HidesTheCode fails a_statement_that_fails_is_an_error_with_the_databases_code
        with "does not tell the database's own code";
    a_hidden_conflict: HidesTheCode fails a_deadlock_is_retryable
        with "does not let a conflict be told";
    a_statement_run_twice: RunsTwice fails a_statement_runs_once_in_the_transaction
        with "did not run a statement once";
}
