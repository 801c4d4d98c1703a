//! Each conflict of the databases, made on purpose: the body runs again, and the second run succeeds.

use std::cell::Cell;
use std::sync::Mutex;
use std::time::Duration;

use dblock::optimistic::{Conflict as _, RetryOptions, retry};
use dblock::store::StoreErrorKind;
use dblock_tests::backend::Place;
use dblock_tests::{Backend, on_every_store};
use sqlx::{Connection as _, Executor as _};
use tokio::sync::{Barrier, OnceCell};

use crate::StockError;
use crate::stock::{Stock, on_pool};

on_every_store!(postgres: a_serialization_failure_is_run_again);
on_every_store!(servers: a_deadlock_victim_is_run_again, a_fence_check_on_an_old_snapshot_is_run_again);
on_every_store!(sqlite: a_snapshot_that_is_out_of_date_is_run_again, a_file_that_is_busy_is_run_again);

mod mysql {
    use dblock_tests::Kind::MySql;
    use dblock_tests::run::on;

    #[test]
    fn a_lock_wait_that_ran_out_is_run_again() {
        on(MySql, super::a_lock_wait_that_ran_out_is_run_again);
    }

    #[test]
    fn a_commit_that_the_group_refused_is_not_run_again() {
        on(MySql, super::a_commit_that_the_group_refused_is_not_run_again);
    }
}

fn patient() -> RetryOptions {
    RetryOptions::new().within(Duration::from_mins(2))
}

/// The codes of the conflicts that a body met, in order.
#[derive(Default)]
struct Met(Mutex<Vec<String>>);

impl Met {
    /// Notes the code, if this is the database's answer.
    fn note<T>(&self, result: Result<T, sqlx::Error>) -> Result<T, StockError> {
        result.map_err(|error| {
            let code = error
                .as_database_error()
                .and_then(sqlx::error::DatabaseError::code);
            self.0
                .lock()
                .unwrap()
                .push(code.map_or_else(|| format!("{error:?}"), Into::into));
            error.into()
        })
    }

    fn codes(self) -> Vec<String> {
        self.0.into_inner().unwrap()
    }
}

async fn a_serialization_failure_is_run_again(backend: Backend) {
    let (stock, met) = (Stock::new(&backend).await, Met::default());
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!("this store alone")
    };
    let result = retry(patient(), async || {
        let run = stock.runs.begin();
        let mut tx = dblock::begin(pool).await?;
        tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            .await?;
        tx.execute(stock.sql("SELECT amount FROM {stock} WHERE id = 1"))
            .await?;
        if run == 1 {
            stock
                .execute("UPDATE {stock} SET amount = amount - 1 WHERE id = 1")
                .await;
        }
        met.note(
            tx.execute(stock.sql("UPDATE {stock} SET amount = amount - 10 WHERE id = 1"))
                .await,
        )?;
        tx.commit().await?;
        Ok::<_, StockError>(())
    });
    result.await.unwrap();
    assert_eq!(met.codes(), ["40001"]);
    assert_eq!((stock.runs.count(), stock.row(1).await), (2, (989, 0)));
    backend.execute(&format!("DROP TABLE {}", stock.table)).await;
}

/// Two bodies take two rows in opposite orders, and wait for each other at the first run.
async fn a_deadlock_victim_is_run_again(backend: Backend) {
    let (stock, met, meeting) = (Stock::new(&backend).await, Met::default(), Barrier::new(2));
    let transfer = async |from: i64, to: i64, cents: i64| {
        let first = Cell::new(true);
        let result = retry(patient(), async || {
            stock.runs.begin();
            let take = stock.sql(&format!(
                "UPDATE {{stock}} SET amount = amount - {cents} WHERE id = {from}"
            ));
            let give = stock.sql(&format!(
                "UPDATE {{stock}} SET amount = amount + {cents} WHERE id = {to}"
            ));
            on_pool!(stock, pool => {
                let mut tx = dblock::begin(pool).await?;
                tx.execute(take).await?;
                if first.take() {
                    meeting.wait().await;
                }
                met.note(tx.execute(give).await)?;
                tx.commit().await?;
            });
            Ok::<_, StockError>(())
        });
        result.await.unwrap();
    };
    tokio::join!(transfer(1, 2, 10), transfer(2, 1, 1));
    let code = match backend.place() {
        Place::Postgres(..) => "40P01",
        _ => "40001", // number 1213
    };
    // A victim that runs again at once may take its row before the other one wakes up: then they meet once
    // more.
    let met = met.codes();
    assert!(!met.is_empty() && met.iter().all(|met| *met == code), "{met:?}");
    assert_eq!(stock.runs.count(), 2 + u32::try_from(met.len()).unwrap());
    assert_eq!((stock.row(1).await.0, stock.row(2).await.0), (991, 1009));
    backend.execute(&format!("DROP TABLE {}", stock.table)).await;
}

/// No group is here. The statement fails with the number that a commit has there.
async fn a_commit_that_the_group_refused_is_not_run_again(backend: Backend) {
    let stock = Stock::new(&backend).await;
    let Place::MySql(pool, _) = backend.place() else {
        unreachable!("this store alone")
    };
    let result = retry(patient(), async || {
        stock.runs.begin();
        let mut tx = dblock::begin(pool).await?;
        tx.execute("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 3101")
            .await?;
        Ok::<_, StockError>(())
    });
    assert!(result.await.unwrap_err().to_string().contains("3101"));
    assert_eq!(stock.runs.count(), 1);
    backend.execute(&format!("DROP TABLE {}", stock.table)).await;
}

async fn a_lock_wait_that_ran_out_is_run_again(backend: Backend) {
    let stock = Stock::new(&backend).await;
    let Place::MySql(pool, _) = backend.place() else {
        unreachable!("this store alone")
    };
    let mut blocker = dblock::begin(pool).await.unwrap();
    let write = || stock.sql("UPDATE {stock} SET amount = amount - 1 WHERE id = 1");
    blocker.execute(write()).await.unwrap();
    let (blocker, waited) = (Cell::new(Some(blocker)), Mutex::new(Vec::new()));
    let result = retry(patient(), async || {
        if stock.runs.begin() == 2 {
            blocker.take().unwrap().commit().await?;
        }
        let mut tx = dblock::begin(pool).await?;
        tx.execute("SET innodb_lock_wait_timeout = 1").await?;
        let written = tx.execute(write()).await;
        let error = written.as_ref().err().map(ToString::to_string);
        waited.lock().unwrap().push(error);
        written?;
        tx.commit().await?;
        Ok::<_, StockError>(())
    });
    result.await.unwrap();
    let waited = waited.into_inner().unwrap();
    assert!(
        matches!(&*waited, [Some(error), None] if error.contains("1205")),
        "{waited:?}"
    );
    assert_eq!(stock.row(1).await.0, 998);
    backend.execute(&format!("DROP TABLE {}", stock.table)).await;
}

async fn a_snapshot_that_is_out_of_date_is_run_again(backend: Backend) {
    let (stock, met) = (Stock::new(&backend).await, Met::default());
    stock.execute("PRAGMA journal_mode = WAL").await;
    let Place::Sqlite(pool, _) = backend.place() else {
        unreachable!("this store alone")
    };
    let result = retry(patient(), async || {
        let run = stock.runs.begin();
        let mut tx = dblock::begin(pool).await?;
        let read: i64 = sqlx::query_scalar(stock.sql("SELECT amount FROM {stock} WHERE id = 1"))
            .fetch_one(&mut *tx)
            .await?;
        if run == 1 {
            stock
                .execute("UPDATE {stock} SET amount = amount - 1 WHERE id = 1")
                .await;
        }
        let write = format!("UPDATE {{stock}} SET amount = {read} - 10 WHERE id = 1");
        met.note(tx.execute(stock.sql(&write)).await)?;
        tx.commit().await?;
        Ok::<_, StockError>(())
    });
    result.await.unwrap();
    assert_eq!(met.codes(), ["517"], "SQLITE_BUSY_SNAPSHOT");
    assert_eq!((stock.runs.count(), stock.row(1).await.0), (2, 989));
}

async fn a_file_that_is_busy_is_run_again(backend: Backend) {
    let (stock, met) = (Stock::new(&backend).await, Met::default());
    let Place::Sqlite(pool, _) = backend.place() else {
        unreachable!("this store alone")
    };
    let write = || stock.sql("UPDATE {stock} SET amount = amount - 1 WHERE id = 1");
    let mut blocker = dblock::begin(pool).await.unwrap();
    blocker.execute(write()).await.unwrap();
    let blocker = Cell::new(Some(blocker));
    let result = retry(patient(), async || {
        if stock.runs.begin() == 2 {
            blocker.take().unwrap().commit().await?;
        }
        let mut connection = pool.acquire().await?;
        connection.execute("PRAGMA busy_timeout = 0").await?;
        let mut tx = connection.begin().await?;
        met.note(tx.execute(write()).await)?;
        tx.commit().await?;
        Ok::<_, StockError>(())
    });
    result.await.unwrap();
    assert_eq!(met.codes(), ["5"], "SQLITE_BUSY");
    assert_eq!((stock.runs.count(), stock.row(1).await.0), (2, 998));
}

/// The lock's own error is a conflict, because the transaction is over, and the next one sees the lease.
async fn a_fence_check_on_an_old_snapshot_is_run_again(backend: Backend) {
    let (stock, locks) = (Stock::new(&backend).await, backend.manager().await);
    let (guard, kinds) = (OnceCell::new(), Mutex::new(Vec::new()));
    // The row is there before, so that the transaction's snapshot has an older one.
    locks.lock("key").run(async {}).await.unwrap();
    let result = retry(patient(), async || {
        stock.runs.begin();
        on_pool!(stock, pool => {
            let mut connection = pool.acquire().await?;
            connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.ok();
            let mut tx = connection.begin().await?;
            tx.execute(stock.sql("SELECT amount FROM {stock} WHERE id = 1")).await?;
            let guard = guard.get_or_try_init(|| locks.lock("key").acquire()).await?;
            let verified = guard.verify_in(&mut tx).await;
            let kind = match &verified {
                Err(dblock::LockError::Store { source, .. }) => Some(source.kind()),
                other => { assert!(other.is_ok(), "{other:?}"); None }
            };
            kinds.lock().unwrap().push(kind);
            verified?;
            tx.commit().await?;
        });
        Ok::<_, StockError>(())
    });
    result.await.unwrap();
    assert_eq!(
        kinds.into_inner().unwrap(),
        [Some(StoreErrorKind::Conflict), None]
    );
    let busy = backend.manager().await.lock("key").acquire().await.unwrap_err();
    assert!(
        busy.is_busy() && !busy.is_conflict(),
        "waiting is what `wait` is for"
    );
    guard.into_inner().unwrap().release().await.unwrap();
    backend.execute(&format!("DROP TABLE {}", stock.table)).await;
}
