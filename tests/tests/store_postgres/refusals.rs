//! Refusals of the database, and the remedy in the message.

use dblock::store::{Store, StoreErrorKind};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::bench::{Bench, acquire, ask, ask_of, extend, one, release, token};

/// A standby, until a fail-over is through: retryable, and what it is.
#[tokio::test]
async fn a_read_only_server_is_named_and_worth_another_try() {
    let Some(bench) = Bench::new("readonly").await else {
        return;
    };
    let store = bench.store_with(|url| url.push_str("options=-c%20default_transaction_read_only%3Don"));
    let request = acquire("a");
    for request in [request.clone(), extend(&request, 1), release(&request)] {
        let error = one(&store, &request).await.unwrap_err();
        assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error:?}");
        let message = error.to_string();
        assert!(
            message.contains("read-only") && message.contains("primary"),
            "{error}"
        );
    }
    let fence = token(&ask(&bench.store(), &request).await);
    // A transaction that may not write is the user's mistake.
    let mut user = bench.user().await;
    let mut transaction = user.begin_with("BEGIN READ ONLY").await.unwrap();
    let check = store.verify_in(&mut transaction, &request.key, request.lease_id, fence);
    let error = check.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(
        error.to_string().contains("begin a transaction that may write"),
        "{error}"
    );
}

/// Then unqualified names are looked up in no schema, and no schema exists in which new tables could be
/// created.
#[tokio::test]
async fn a_search_path_that_leads_nowhere_is_named() {
    let Some(bench) = Bench::empty("nowhere").await else {
        return;
    };
    let store = bench.store_with(|url| url.push_str("options=-c%20search_path%3Dno_such_schema"));
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    let message = error.to_string();
    assert!(
        message.contains("`search_path`") && message.contains("builder's `table`"),
        "{error}"
    );
}

/// The server has a code of its own for each: a text with a character that the encoding lacks, and one with a
/// NUL.
#[tokio::test]
async fn a_text_that_the_database_cannot_keep_names_the_encoding() {
    let Some(bench) = Bench::new("encoding").await else {
        return;
    };
    let database = "dblock_test_latin1";
    let mut user = bench.user().await;
    for sql in [
        format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)"),
        format!(
            "CREATE DATABASE {database} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
        ),
    ] {
        sqlx::query(AssertSqlSafe(sql)).execute(&mut user).await.unwrap();
    }
    let latin = bench.store_with(|url| url.extend(["dbname=", database]));
    latin.migrate().await.unwrap();
    token(&ask(&latin, &acquire("café")).await);
    let mut with_nul = acquire("a");
    ask_of(&mut with_nul).holder = "a\0b".into();
    for (store, request) in [(&latin, acquire("30 €")), (&bench.store(), with_nul)] {
        let error = one(store, &request).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other, "{error}");
        assert!(error.to_string().contains("encoding UTF8"), "{error}");
    }
}
