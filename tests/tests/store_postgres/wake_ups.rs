//! Releases of wanted keys reach the stores that listen, and a listener that hears nothing says so.

use std::time::Duration;

use dblock::store::{Outcome, PostgresStore, Released, Request, Store, StoreError, StoreErrorKind, WakeUp};
use dblock_tests::proxy::{Proxy, Traffic};
use sqlx::{AssertSqlSafe, Row};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::bench::{Bench, acquire, ask, key, release, token, waiting};

const WISH: Duration = Duration::from_secs(10);

/// The sessions that listen for the table. The channel's name is what other versions of dblock use, too.
const SESSIONS: &str =
    "FROM pg_stat_activity WHERE query = 'LISTEN \"dblock_' || '{t}'::regclass::oid || '\"'";

/// A store that listens, and what it has told.
pub(crate) struct Listener {
    told: mpsc::UnboundedReceiver<WakeUp>,
    end: JoinHandle<StoreError>,
}

impl Listener {
    fn start(store: PostgresStore) -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        let end = tokio::spawn(async move {
            store
                .listen(&move |wake_up| {
                    // Nobody hears it when the test is over.
                    drop(sender.send(wake_up));
                })
                .await
        });
        Self { told, end }
    }

    /// One that is past the beginning.
    pub(crate) async fn listening(store: PostgresStore) -> Self {
        let mut listener = Self::start(store);
        assert_eq!(listener.next().await, WakeUp::Listening);
        listener
    }

    pub(crate) async fn next(&mut self) -> WakeUp {
        match self.told.recv().await {
            Some(wake_up) => wake_up,
            None => panic!("ended: {}", (&mut self.end).await.unwrap()),
        }
    }
}

fn released(name: &str) -> WakeUp {
    WakeUp::Released(key(name))
}

/// Takes the key; somebody else wants it.
async fn wanted(store: &PostgresStore, name: &str) -> Request {
    let request = acquire(name);
    token(&ask(store, &request).await);
    let busy = ask(store, &waiting(name, WISH)).await;
    assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
    request
}

/// Each way to free a key, wanted and not. No wake-up is sent for a key that nobody wants, or in another
/// table.
#[tokio::test]
async fn a_release_of_a_wanted_key_is_told() {
    let Some(bench) = Bench::new("wake_ups").await else {
        return;
    };
    let Some(elsewhere) = Bench::new("wake_ups_elsewhere").await else {
        return;
    };
    let store = bench.store();
    // The same table under its other name.
    let other_name = PostgresStore::open(&bench.url, &format!("public.{}", bench.table)).unwrap();
    let mut listeners = [
        Listener::listening(bench.store()).await,
        Listener::listening(other_name).await,
    ];

    let unwanted = acquire("unwanted");
    ask(&store, &unwanted).await;
    ask(&store, &release(&unwanted)).await;
    let over = wanted(&store, "no longer wanted").await;
    bench.run("UPDATE {t} SET wanted_until = acquired_at").await;
    ask(&store, &release(&over)).await;
    let of_elsewhere = elsewhere.store();
    ask(&of_elsewhere, &release(&wanted(&of_elsewhere, "elsewhere").await)).await;

    let alone = wanted(&store, "alone").await;
    ask(&store, &release(&alone)).await;
    // Nothing is freed twice.
    ask(&store, &release(&alone)).await;
    let unwanted = acquire("unwanted");
    ask(&store, &unwanted).await;
    let batch = [
        release(&wanted(&store, "in a batch").await),
        release(&unwanted),
        release(&wanted(&store, "é 'quoted'").await),
    ];
    for answer in store.apply(&batch).await {
        assert!(
            matches!(answer, Ok(Outcome::Released(Released::Freed))),
            "{answer:?}"
        );
    }
    assert!(
        store
            .force_release(&wanted(&store, "by force").await.key)
            .await
            .unwrap()
    );
    let last = wanted(&store, "last").await;
    ask(&store, &release(&last)).await;

    for listener in &mut listeners {
        assert_eq!(listener.next().await, released("alone"));
        let mut of_the_batch = [listener.next().await, listener.next().await];
        of_the_batch.sort_by_key(|wake_up| format!("{wake_up:?}"));
        assert_eq!(of_the_batch, [released("in a batch"), released("é 'quoted'")]);
        assert_eq!(listener.next().await, released("by force"));
        assert_eq!(listener.next().await, released("last"));
    }
}

/// Dropping the future closes the connection.
#[tokio::test]
async fn a_dropped_listener_leaves_nothing_behind() {
    let Some(bench) = Bench::new("wake_ups_dropped").await else {
        return;
    };
    let listener = Listener::listening(bench.store()).await;
    let mut user = bench.user().await;
    let sql = format!("SELECT pid {}", SESSIONS.replace("{t}", &bench.table));
    let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut user).await;
    let process: i32 = row.unwrap().get(0);
    listener.end.abort();
    loop {
        let there = sqlx::query("SELECT FROM pg_stat_activity WHERE pid = $1")
            .bind(process)
            .fetch_optional(&mut user)
            .await
            .unwrap();
        if there.is_none() {
            return;
        }
    }
}

/// The server ends the session.
#[tokio::test]
async fn a_closed_connection_ends_it() {
    let Some(bench) = Bench::new("wake_ups_closed").await else {
        return;
    };
    let mut listener = Listener::listening(bench.store()).await;
    bench
        .run(&format!("SELECT pg_terminate_backend(pid) {SESSIONS}"))
        .await;
    let error = (&mut listener.end).await.unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Interrupted, "{error}");
    assert_eq!(listener.told.recv().await, None);
}

/// A server that is gone without a word. The clock is let run as soon as nothing else is to do.
#[tokio::test]
async fn a_silent_server_ends_it() {
    let Some(bench) = Bench::new("wake_ups_silent").await else {
        return;
    };
    let proxy = Proxy::start(bench.address());
    let mut listener = Listener::listening(bench.store_at(proxy.address())).await;
    proxy.set(Traffic::BlackHole);
    tokio::time::pause();
    let error = (&mut listener.end).await.unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Interrupted, "{error}");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_named() {
    let store = PostgresStore::open("postgres://a:hunter2@127.0.0.1:1/a", "t").unwrap();
    let error = store.listen(&|_| panic!("nothing can be heard")).await;
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(!format!("{error:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_missing_table_is_named() {
    let Some(bench) = Bench::empty("wake_ups_missing").await else {
        return;
    };
    let error = bench.store().listen(&|_| panic!("nothing can be heard")).await;
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
}
