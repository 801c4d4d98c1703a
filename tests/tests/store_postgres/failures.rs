//! A statement that fails, for one of its rows or with its session.

use dblock::store::{Action, Outcome, Store, StoreErrorKind};
use sqlx::{AssertSqlSafe, Connection, Row};

use crate::bench::{Bench, acquire, ask, extend, one};

/// One bad row fails alone.
#[tokio::test]
async fn a_batch_that_fails_for_one_row_is_split() {
    let Some(bench) = Bench::new("split").await else {
        return;
    };
    let store = bench.store();
    let mut batch: Vec<_> = ["a", "b", "c"].map(acquire).into();
    if let Action::Acquire { holder, .. } = &mut batch[1].action {
        *holder = "a NUL \0".into();
    }
    let answers = store.apply(&batch).await;
    assert!(matches!(answers[0], Ok(Outcome::Granted { .. })), "{answers:?}");
    assert!(
        matches!(&answers[1], Err(error) if error.kind() == StoreErrorKind::Other),
        "{answers:?}"
    );
    assert!(matches!(answers[2], Ok(Outcome::Granted { .. })), "{answers:?}");
}

/// The server ends the session: the outcome is unknown, and the next request has a new connection.
#[tokio::test]
async fn a_terminated_session_is_an_unknown_outcome() {
    let Some(bench) = Bench::new("terminated").await else {
        return;
    };
    let store = bench.store();
    let request = acquire("a");
    ask(&store, &request).await;
    // The extend waits in the server behind a table lock until its session is terminated.
    let mut user = bench.user().await;
    let mut transaction = user.begin().await.unwrap();
    let lock = format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", bench.table);
    sqlx::query(AssertSqlSafe(lock))
        .execute(&mut *transaction)
        .await
        .unwrap();
    let terminate = async {
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE application_name = 'dblock' AND wait_event_type = 'Lock' AND query LIKE '%{}%'",
            bench.table
        );
        let mut admin = bench.user().await;
        loop {
            let row = sqlx::query(AssertSqlSafe(sql.clone()))
                .fetch_one(&mut admin)
                .await
                .unwrap();
            if row.get::<i64, _>(0) > 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let renewal = extend(&request, 1);
    let (answer, ()) = tokio::join!(one(&store, &renewal), terminate);
    let error = answer.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    transaction.rollback().await.unwrap();
    assert!(matches!(
        ask(&store, &extend(&request, 1)).await,
        Outcome::Extended { .. }
    ));
}
