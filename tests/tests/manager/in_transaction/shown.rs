//! What others see of a key that an open transaction keeps: it is held, and nobody can free it.

use std::time::{Duration, Instant};

use dblock::store::StoreErrorKind;
use dblock::{InspectFilter, LockError, LockManager, LockRow, OpenTransaction};
use dblock_tests::backend::{Kind, Place};
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, PgPool};

use super::{Failure, execute, is_free, on_its_pool};
use crate::{LONG, long, short};

on_every_store!(servers:
    a_row_that_is_locked_is_shown_as_held,
    a_call_in_a_transaction_is_shown_as_held,
    nobody_revokes_what_a_transaction_keeps,
    a_lease_that_ends_with_a_transaction_is_held_until_then,
    who_does_not_wait_is_refused_soon,
);
on_every_store!(postgres:
    a_taken_key_is_shown_as_held,
    a_new_key_is_shown_as_held,
    a_sub_transaction_is_open_with_its_transaction,
    a_prepared_transaction_is_open,
    transactions_that_share_a_row_keep_it,
    a_user_without_rights_sees_it_too,
    a_statement_of_dblock_is_no_transaction,
);

on_every_store!(mysql: a_prepared_transaction_is_no_session);

impl Seen<'_> {
    async fn get(&self) -> LockRow {
        self.0.admin().get("key").await.unwrap().unwrap()
    }

    async fn transaction(&self) -> OpenTransaction {
        let row = self.get().await;
        assert!(row.is_held(), "{row:?}");
        assert!(self.0.admin().is_locked("key").await.unwrap());
        row.transaction.unwrap_or_else(|| panic!("no transaction"))
    }

    async fn is_free(&self) {
        let row = self.get().await;
        assert!(!row.is_held() && row.transaction.is_none(), "{row:?}");
        assert!(!self.0.admin().is_locked("key").await.unwrap());
        assert_eq!(self.listed().await, [None, None]);
    }

    /// The row in a list of what is held, by key and by urgency.
    async fn listed(&self) -> [Option<LockRow>; 2] {
        let filter = InspectFilter::new().prefix("key");
        let by_key = self.0.admin().list(filter.clone()).await.unwrap();
        let urgent = self.0.admin().list(filter.urgent_first()).await.unwrap();
        [by_key, urgent].map(|mut rows| rows.pop())
    }

    async fn is_listed(&self) {
        let shown = self.get().await;
        for row in self.listed().await {
            let row = row.unwrap();
            assert_eq!(row.transaction, shown.transaction);
            assert_eq!(row.position(), shown.position());
        }
    }
}

/// An operator's, at the key.
struct Seen<'m>(&'m LockManager);

/// A connection of the application's, which is not in its pool.
async fn connect(backend: &Backend) -> PgConnection {
    let connection = PgConnection::connect(&backend.url().unwrap()).await;
    connection.unwrap()
}

async fn pid(connection: &mut PgConnection) -> u64 {
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(connection)
        .await
        .unwrap();
    pid.try_into().unwrap()
}

fn locking(backend: &Backend, how: &str) -> String {
    format!("SELECT 1 FROM {} WHERE lock_key = 'key' {how}", backend.table)
}

fn is_since(transaction: &OpenTransaction, row: &LockRow) -> bool {
    let long_ago = row.now - Duration::from_mins(1);
    transaction
        .since
        .is_some_and(|since| since > long_ago && since <= row.now)
}

async fn a_row_that_is_locked_is_shown_as_held(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let seen = Seen(&operator);
    is_free(&locks).await;
    seen.is_free().await;
    for commits in [true, false] {
        let mut tx = Transaction::begin(&backend).await;
        tx.execute(locking(&backend, "FOR UPDATE")).await;
        seen.transaction().await;
        if backend.kind() == Kind::Postgres {
            seen.is_listed().await;
        }
        if commits {
            tx.commit().await;
        } else {
            tx.rollback().await;
        }
        seen.is_free().await;
    }
    is_free(&locks).await;
}

async fn a_call_in_a_transaction_is_shown_as_held(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let seen = Seen(&operator);
    is_free(&locks).await;
    on_its_pool!(backend, pool => {
        for fails in [false, true, false] {
            let body = locks.lock("key").options(&long()).transaction(pool, async |_| {
                assert!(backend.the_row("key").await.is_free(), "it was taken");
                seen.transaction().await;
                if fails { Err(Failure::Own) } else { Ok(()) }
            });
            assert_eq!(body.await.is_err(), fails);
            seen.is_free().await;
        }
    });
}

async fn a_taken_key_is_shown_as_held(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let seen = Seen(&operator);
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!("this is a test of PostgreSQL")
    };
    for fails in [false, true, false] {
        let body = locks
            .lock("key")
            .options(&long())
            .transaction(pool, async |mut tx| {
                sqlx::raw_sql("SET application_name = 'shop api'")
                    .execute(&mut **tx)
                    .await?;
                let row = seen.get().await;
                let transaction = seen.transaction().await;
                assert_eq!(transaction.session, Some(pid(&mut tx).await));
                assert_eq!(transaction.application.as_deref(), Some("shop api"));
                assert!(is_since(&transaction, &row), "{row:?}");
                assert_eq!(transaction.prepared, None);
                seen.is_listed().await;
                if fails { Err(Failure::Own) } else { Ok(()) }
            });
        assert_eq!(body.await.is_err(), fails);
        seen.is_free().await;
    }
}

/// Its row was made for it, and committed, right before.
async fn a_new_key_is_shown_as_held(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!("this is a test of PostgreSQL")
    };
    for key in ["one", "two"] {
        let body = locks.lock(key).options(&long()).transaction(pool, async |_| {
            assert!(operator.admin().is_locked(key).await?);
            Ok::<_, LockError>(operator.admin().list(InspectFilter::new()).await?.len())
        });
        assert_eq!(body.await.unwrap(), 1);
        assert!(!operator.admin().is_locked(key).await.unwrap());
    }
}

async fn nobody_revokes_what_a_transaction_keeps(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    is_free(&locks).await;
    let mut tx = Transaction::begin(&backend).await;
    tx.execute(locking(&backend, "FOR UPDATE")).await;
    is_refused(&backend, &operator, &mut tx).await;
    tx.commit().await;
    assert!(!operator.admin().revoke("key").await.unwrap());
    assert!(!operator.admin().force_release("key").await.unwrap());
}

/// Soon, and with the session that must end.
async fn is_refused(backend: &Backend, operator: &LockManager, tx: &mut Transaction) {
    for by_force in [false, true] {
        let since = Instant::now();
        let answer = if by_force {
            operator.admin().force_release("key").await
        } else {
            operator.admin().revoke("key").await
        };
        let LockError::Store { source, .. } = answer.unwrap_err() else {
            panic!("another error")
        };
        assert_eq!(source.kind(), StoreErrorKind::Conflict);
        let said = source.to_string();
        assert!(said.contains("keeps the key"), "{said}");
        match tx {
            Transaction::Postgres(tx) => {
                let end = format!("pg_terminate_backend({})", pid(tx).await);
                assert!(said.contains(&end), "{said}");
            }
            // Other transactions may have rows locked.
            _ => assert!(said.contains("KILL"), "{said}"),
        }
        assert!(
            since.elapsed() < Duration::from_secs(8),
            "{:?} {backend:?}",
            since.elapsed()
        );
    }
}

async fn a_lease_that_ends_with_a_transaction_is_held_until_then(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let seen = Seen(&operator);
    let guard = locks.lock("key").options(&short()).acquire().await.unwrap();
    let mut tx = Transaction::begin(&backend).await;
    tx.release(guard).await.unwrap();
    assert!(seen.get().await.is_held());
    backend.until("key", LONG, |row| row.expire_at <= row.now).await;
    seen.transaction().await;
    is_refused(&backend, &operator, &mut tx).await;
    tx.commit().await;
    seen.is_free().await;
}

/// `pg_locks` does not show it.
async fn a_sub_transaction_is_open_with_its_transaction(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let seen = Seen(&operator);
    is_free(&locks).await;
    let mut user = connect(&backend).await;
    let write = format!(
        "UPDATE {} SET holder = 'me' WHERE lock_key = 'key'",
        backend.table
    );
    let begin = format!("BEGIN; SAVEPOINT one; {write}; RELEASE SAVEPOINT one");
    execute(&mut user, begin).await.unwrap();
    let transaction = seen.transaction().await;
    // Nobody else uses the table.
    assert_eq!(transaction.session, Some(pid(&mut user).await));
    seen.is_listed().await;
    execute(&mut user, "ROLLBACK".to_owned()).await.unwrap();
    seen.is_free().await;
}

async fn a_prepared_transaction_is_open(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let seen = Seen(&operator);
    is_free(&locks).await;
    let mut user = connect(&backend).await;
    let most: String = sqlx::query_scalar("SHOW max_prepared_transactions")
        .fetch_one(&mut user)
        .await
        .unwrap();
    if most == "0" {
        eprintln!("LEFT OUT: the server prepares no transactions (max_prepared_transactions)");
        return;
    }
    let name = format!("it's {}", backend.table);
    let quoted = name.replace('\'', "''");
    let lock = locking(&backend, "FOR UPDATE");
    execute(
        &mut user,
        format!("BEGIN; {lock}; PREPARE TRANSACTION '{quoted}'"),
    )
    .await
    .unwrap();
    let transaction = seen.transaction().await;
    assert_eq!((transaction.session, transaction.prepared), (None, Some(name)));
    seen.is_listed().await;
    let refused = operator.admin().force_release("key").await.unwrap_err();
    let end = format!("ROLLBACK PREPARED '{quoted}'");
    assert!(refused.to_string().contains(&end), "{refused}");
    execute(&mut user, end).await.unwrap();
    seen.is_free().await;
}

/// Once its client has gone the server shows session 0, which nobody can end.
async fn a_prepared_transaction_is_no_session(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let seen = Seen(&operator);
    is_free(&locks).await;
    let mut user = MySqlConnection::connect(&backend.url().unwrap()).await.unwrap();
    let name = &backend.table;
    // MariaDB gives up what a prepared transaction has locked and not written.
    let write = format!("UPDATE {name} SET holder = 'me' WHERE lock_key = 'key'");
    let prepare = format!("XA START '{name}'; {write}; XA END '{name}'; XA PREPARE '{name}'");
    execute(&mut user, prepare).await.unwrap();
    user.close().await.unwrap();
    assert_eq!(seen.transaction().await.session, None);
    let refused = operator.admin().force_release("key").await.unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("KILL") && !said.contains("KILL 0"), "{said}");
    backend.execute(&format!("XA ROLLBACK '{name}'")).await;
    seen.is_free().await;
}

/// Then `xmax` is the number of their group, and no transaction's.
async fn transactions_that_share_a_row_keep_it(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let seen = Seen(&operator);
    is_free(&locks).await;
    let mut users = [connect(&backend).await, connect(&backend).await];
    for user in &mut users {
        let lock = format!("BEGIN; {}", locking(&backend, "FOR SHARE"));
        execute(user, lock).await.unwrap();
    }
    let group: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
        "SELECT count(*) FROM {}, pg_get_multixact_members(xmax) WHERE lock_key = 'key'",
        backend.table
    )))
    .fetch_one(&mut users[0])
    .await
    .unwrap();
    assert_eq!(group, 2);
    for user in &mut users {
        seen.transaction().await;
        execute(user, "COMMIT".to_owned()).await.unwrap();
    }
    seen.is_free().await;
}

/// It sees no start of another user's transaction.
async fn a_user_without_rights_sees_it_too(backend: Backend) {
    let locks = backend.manager().await;
    is_free(&locks).await;
    let mut user = connect(&backend).await;
    let role = format!("{}_operator", backend.table);
    let table = &backend.table;
    let create = format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'secret';
        GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role};
        GRANT SELECT ON {table}_version TO {role}"
    );
    execute(&mut user, create).await.unwrap();
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!("this is a test of PostgreSQL")
    };
    let options = pool.connect_options().as_ref().clone();
    let options = options.username(&role).password("secret");
    let operator = LockManager::builder(PgPool::connect_lazy_with(options))
        .table(table)
        .build()
        .await
        .unwrap();
    let seen = Seen(&operator);
    seen.is_free().await;
    execute(&mut user, format!("BEGIN; {}", locking(&backend, "FOR UPDATE")))
        .await
        .unwrap();
    let transaction = seen.transaction().await;
    assert_eq!(transaction.session, Some(pid(&mut user).await));
    assert_eq!(transaction.since, None);
    seen.is_listed().await;
    let refused = operator.admin().revoke("key").await.unwrap_err();
    assert!(refused.to_string().contains("pg_terminate_backend"), "{refused}");
    execute(&mut user, "COMMIT".to_owned()).await.unwrap();
    seen.is_free().await;
    operator.shutdown(LONG).await;
    execute(&mut user, format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .unwrap();
}

/// It lasts for a moment. One that hangs keeps the key.
async fn a_statement_of_dblock_is_no_transaction(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let seen = Seen(&operator);
    is_free(&locks).await;
    let mut ours = connect(&backend).await;
    let pid = pid(&mut ours).await;
    let hangs = format!(
        "SET application_name = 'dblock'; SELECT pg_sleep(60) FROM ({}) locked",
        locking(&backend, "FOR UPDATE")
    );
    let hangs = tokio::spawn(async move { sqlx::raw_sql(AssertSqlSafe(hangs)).execute(&mut ours).await });
    let mut user = connect(&backend).await;
    let state = format!(
        "SELECT now() - query_start < '0.8 s' AS early FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'"
    );
    let early = async |user: &mut PgConnection| -> Option<bool> {
        let state = sqlx::query_scalar(AssertSqlSafe(state.clone()));
        state.fetch_optional(user).await.unwrap()
    };
    let mut began = None;
    while began.is_none() {
        began = early(&mut user).await;
    }
    let shown = seen.get().await;
    let listed = seen.listed().await;
    // On a machine that stalls it may be too late for that.
    if early(&mut user).await == Some(true) {
        assert!(!shown.is_held() && listed == [None, None], "{shown:?} {listed:?}");
    }
    while !seen.get().await.is_held() {}
    assert_eq!(seen.transaction().await.session, Some(pid));
    execute(&mut user, format!("SELECT pg_terminate_backend({pid})"))
        .await
        .unwrap();
    assert!(hangs.await.unwrap().is_err());
    while seen.get().await.is_held() {}
}

/// After 20 ms, and not after a second: also who asks for several keys, and in the process that seen first.
async fn who_does_not_wait_is_refused_soon(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    is_free(&locks).await;
    let mut tx = Transaction::begin(&backend).await;
    tx.execute(locking(&backend, "FOR UPDATE")).await;
    for keys in [vec!["key"], vec!["a", "b", "key", "x"]] {
        for locks in [&locks, &other] {
            let mut shortest = Duration::MAX;
            // A machine may stall; not each time.
            for _ in 0..5 {
                let since = Instant::now();
                let refused = locks.lock(keys.clone()).options(&long()).try_acquire().await;
                assert!(refused.unwrap().is_none());
                shortest = shortest.min(since.elapsed());
            }
            assert!(shortest < Duration::from_millis(400), "{shortest:?}");
        }
    }
    tx.commit().await;
    let guard = other.lock("key").options(&long()).try_acquire().await.unwrap();
    guard.unwrap().release().await.unwrap();
}
