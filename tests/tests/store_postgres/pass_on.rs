//! A release that passes the row on: rows that others have locked, and many sessions that queue, pass on,
//! give up and take over at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use dblock::store::{Outcome, PostgresStore, Released, Request, Store, WakeUp};
use dblock::{InspectFilter, LockRow};
use sqlx::{AssertSqlSafe, Connection};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bench::{Bench, TTL, acquire, ask, ask_of, extend, insist, queueing, release, token, waiting};

const WISH: Duration = Duration::from_secs(3);

async fn row(store: &PostgresStore, name: &str) -> LockRow {
    let filter = InspectFilter::new().prefix(name).include_free();
    let rows = store.inspect(&filter).await.unwrap();
    rows.into_iter().find(|row| row.key.as_str() == name).unwrap()
}

/// A store that listens, and what it has told.
async fn listener(bench: &Bench, tasks: &mut JoinSet<()>) -> mpsc::UnboundedReceiver<WakeUp> {
    let store = bench.store();
    let (tell, mut told) = mpsc::unbounded_channel();
    tasks.spawn(async move {
        let error = store.listen(&move |wake_up| drop(tell.send(wake_up))).await;
        panic!("{error}");
    });
    assert_eq!(told.recv().await, Some(WakeUp::Listening));
    told
}

/// The state that all racers see: how many hold the lock, and the newest token.
#[derive(Debug, Default)]
struct Seen {
    inside: AtomicI64,
    newest: AtomicI64,
    granted: AtomicI64,
    woken: AtomicI64,
    withdrawn: AtomicI64,
}

impl Seen {
    fn enter(&self, fence_token: i64) {
        assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "two leases at once");
        let last = self.newest.swap(fence_token, SeqCst);
        assert!(last < fence_token, "a token did not grow");
    }

    /// Each way to enter and to leave was seen.
    fn is_complete(&self, entries: i64) -> bool {
        let (granted, woken) = (self.granted.load(SeqCst), self.woken.load(SeqCst));
        granted + woken >= entries && granted > 0 && woken > 20 && self.withdrawn.load(SeqCst) > 0
    }
}

struct Racer {
    number: u64,
    store: PostgresStore,
    told: mpsc::UnboundedReceiver<WakeUp>,
    seen: Arc<Seen>,
}

impl Racer {
    async fn run(mut self, entries: i64) {
        let mut round = self.number;
        while !self.seen.is_complete(entries) {
            round += 1;
            let request = queueing("hot", WISH);
            self.until_over(&request, round).await;
        }
    }

    /// One lease, from its first request to its end.
    async fn until_over(&mut self, request: &Request, round: u64) {
        while self.told.try_recv().is_ok() {}
        loop {
            match self.ask(request).await {
                Outcome::Granted { fence_token, .. } => {
                    self.seen.granted.fetch_add(1, SeqCst);
                    return self.inside(request, fence_token).await;
                }
                Outcome::Queued { holder, .. } => {
                    if round.is_multiple_of(7) {
                        return self.give_up(request).await;
                    }
                    if let Some(fence_token) = self.passed_on(request, holder.fence_token).await {
                        self.seen.woken.fetch_add(1, SeqCst);
                        return self.inside(request, fence_token).await;
                    }
                }
                Outcome::Busy(_) if round.is_multiple_of(3) => return self.give_up(request).await,
                Outcome::Busy(_) | Outcome::Skipped => tokio::task::yield_now().await,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Half of the racers use the multi-row statements.
    async fn ask(&self, request: &Request) -> Outcome {
        if self.number.is_multiple_of(2) {
            return ask(&self.store, request).await;
        }
        let mine = acquire(format!("cold {}", self.number));
        let mut answers = self.store.apply(&[request.clone(), mine.clone()]).await;
        insist(&self.store, &release(&mine)).await;
        answers.swap_remove(0).unwrap()
    }

    /// The lease may have been passed on by now.
    async fn give_up(&self, request: &Request) {
        match insist(&self.store, &release(request)).await {
            Outcome::Withdrawn => drop(self.seen.withdrawn.fetch_add(1, SeqCst)),
            Outcome::Lost | Outcome::Released(Released::Freed | Released::PassedOn) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the wake-up, but not for long.
    async fn passed_on(&mut self, request: &Request, of_the_holder: i64) -> Option<i64> {
        let heard = async {
            loop {
                match self.told.recv().await.expect("it goes on listening") {
                    WakeUp::PassedOn {
                        lease_id,
                        fence_token,
                        ..
                    } if lease_id == request.lease_id && fence_token > of_the_holder => return fence_token,
                    _ => {}
                }
            }
        };
        timeout(Duration::from_millis(50), heard).await.ok()
    }

    async fn inside(&self, request: &Request, fence_token: i64) {
        self.seen.enter(fence_token);
        let extended = insist(&self.store, &extend(request, 2)).await;
        assert!(matches!(extended, Outcome::Extended { .. }), "{extended:?}");
        assert_eq!(self.seen.inside.fetch_sub(1, SeqCst), 1);
        let released = insist(&self.store, &release(request)).await;
        assert!(
            matches!(released, Outcome::Released(Released::Freed | Released::PassedOn)),
            "{released:?}"
        );
        for late in [extend(request, 1), release(request)] {
            let outcome = ask(&self.store, &late).await;
            let fits = matches!(
                outcome,
                Outcome::Lost | Outcome::Skipped | Outcome::Released(Released::Before)
            );
            assert!(fits, "{outcome:?}");
        }
    }
}

/// At most one lease is inside, tokens only grow, and who hears that the row was passed on may enter without
/// a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_successors_enter_one_at_a_time() {
    let Some(bench) = Bench::new("pass_on_race").await else {
        return;
    };
    let seen = Arc::new(Seen::default());
    // Dropping them at a panic ends them all.
    let (mut listeners, mut racers) = (JoinSet::new(), JoinSet::new());
    for number in 0..6 {
        let told = listener(&bench, &mut listeners).await;
        let racer = Racer {
            number,
            store: bench.store(),
            told,
            seen: Arc::clone(&seen),
        };
        racers.spawn(racer.run(200));
    }
    let all = async {
        while let Some(racer) = racers.join_next().await {
            racer.unwrap();
        }
    };
    timeout(Duration::from_secs(90), all)
        .await
        .unwrap_or_else(|_| panic!("nobody enters any more, or not in each way: {seen:?}"));
    assert!(seen.is_complete(200), "{seen:?}");
}

/// A row that is locked by somebody's transaction: who is next or could become it is told nothing rather than
/// that the key is busy, and others are told that it is. Nobody is told to be next.
#[tokio::test]
async fn a_locked_row_says_nothing_to_who_may_be_next() {
    let Some(bench) = Bench::new("pass_on_locked").await else {
        return;
    };
    let store = bench.store();
    let [alone, followed] = ["alone", "followed"].map(acquire);
    for holder in [&alone, &followed] {
        token(&ask(&store, holder).await);
        let busy = ask(&store, &waiting(holder.key.as_str(), WISH)).await;
        assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
    }
    let next = queueing("followed", WISH);
    let queued = ask(&store, &next).await;
    assert!(matches!(queued, Outcome::Queued { .. }), "{queued:?}");

    let mut user = bench.user().await;
    let mut transaction = user.begin().await.unwrap();
    let lock = AssertSqlSafe(format!("SELECT FROM {} FOR UPDATE", bench.table));
    sqlx::query(lock).execute(&mut *transaction).await.unwrap();
    let mut unqueued = waiting("followed", WISH);
    unqueued.lease_id = next.lease_id;
    let mut older = queueing("followed", WISH);
    ask_of(&mut older).queue = Some(TTL);
    for (request, is_busy) in [
        (queueing("alone", WISH), false),
        (waiting("alone", WISH), true),
        (next.clone(), false),
        (unqueued, false),
        (older, false),
        (queueing("followed", WISH), true),
        (waiting("followed", WISH), true),
    ] {
        let outcome = ask(&store, &request).await;
        let fits = match &outcome {
            Outcome::Busy(_) => is_busy,
            Outcome::Skipped => !is_busy,
            _ => false,
        };
        assert!(fits, "{request:?} was answered with {outcome:?}");
    }
    for request in [release(&followed), release(&next), extend(&followed, 1)] {
        assert_eq!(ask(&store, &request).await, Outcome::Skipped);
    }
    transaction.rollback().await.unwrap();
    assert_eq!(ask(&store, &release(&next)).await, Outcome::Withdrawn);
}

/// A server that can take no more notifications: what is released is free or passed on, and nobody is told.
#[tokio::test]
async fn a_full_queue_of_notifications_stops_no_release() {
    let Some(bench) = Bench::new("pass_on_full").await else {
        return;
    };
    // Filling the real queue takes 8 GB.
    bench
        .run(
            "CREATE OR REPLACE FUNCTION {t}_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF current_query() LIKE '%pg_notify(%' AND NEW.wanted_until > 0 THEN
                     RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER is_full AFTER UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_full()",
        )
        .await;
    let (store, other) = (bench.store(), bench.store());
    for (name, passes_on) in [("freed", false), ("passed on", true)] {
        for in_a_batch in [false, true] {
            let holder = acquire(name);
            token(&ask(&store, &holder).await);
            let waits = if passes_on {
                queueing(name, WISH)
            } else {
                waiting(name, WISH)
            };
            ask(&other, &waits).await;
            let plain = acquire("plain");
            token(&ask(&store, &plain).await);
            let mut batch = vec![release(&holder)];
            batch.extend(in_a_batch.then(|| release(&plain)));
            for answer in store.apply(&batch).await {
                match answer {
                    Ok(Outcome::Released(Released::Freed)) => {}
                    Ok(Outcome::Released(Released::PassedOn)) if passes_on => {}
                    answer => panic!("{answer:?}"),
                }
            }
            let row = row(&store, name).await;
            assert_eq!(
                (row.is_held(), row.lease_id == waits.lease_id),
                (passes_on, passes_on)
            );
            ask(&other, &release(&waits)).await;
            ask(&store, &release(&plain)).await;
        }
    }
    let holder = acquire("by force");
    ask(&store, &holder).await;
    ask(&other, &waiting("by force", WISH)).await;
    assert!(store.force_release(&holder.key).await.unwrap());
    assert!(!row(&store, "by force").await.is_held());
}
