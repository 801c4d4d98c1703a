//! A release that passes the row on: what stands in the row and what the notification says, rows that others have
//! locked, and many sessions that queue, pass on, give up and take over at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use dblock::store::{NEXT_TTL, Outcome, PostgresStore, Request, Store, Successor, WakeUp};
use dblock::{InspectFilter, LockRow};
use sqlx::{AssertSqlSafe, Connection};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

use crate::bench::{
    Bench, TTL, acquire, ask, ask_of, extend, insist, key, queueing, release, token, waiting,
};

const WISH: Duration = Duration::from_secs(3);

async fn row(store: &PostgresStore, name: &str) -> LockRow {
    let filter = InspectFilter::new().prefix(name).include_free();
    let rows = store.inspect(&filter).await.unwrap();
    rows.into_iter().find(|row| row.key.as_str() == name).unwrap()
}

fn queued(outcome: &Outcome) -> (i64, Duration) {
    match outcome {
        Outcome::Queued { holder, next_ttl, .. } => (holder.fence_token, *next_ttl),
        other => panic!("not queued: {other:?}"),
    }
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

/// Alone and in a batch, by a holder that knows of the successor and by one that does not.
#[tokio::test]
async fn a_release_passes_the_row_on_and_says_so() {
    let Some(bench) = Bench::new("pass_on").await else {
        return;
    };
    let mut tasks = JoinSet::new();
    let mut told = listener(&bench, &mut tasks).await;
    let (holder_store, other) = (bench.store(), bench.store());
    for (name, knows, in_a_batch) in [
        ("alone", false, false),
        ("alone, known", true, false),
        ("batch", false, true),
        ("batch, known é", true, true),
    ] {
        let holder = acquire(name);
        let before = token(&ask(&holder_store, &holder).await);
        let mut next = queueing(name, WISH);
        ask_of(&mut next).spare_tokens = 5;
        ask_of(&mut next).holder = "host/2 next".into();
        assert_eq!(queued(&ask(&other, &next).await), (before, NEXT_TTL));
        if knows {
            let extended = ask(&holder_store, &extend(&holder, 1)).await;
            assert!(matches!(extended, Outcome::Extended { wanted: true, .. }));
        }
        holder_store.revoke(&holder.key).await.unwrap();
        let plain = acquire(format!("{name}, nobody waits"));
        ask(&holder_store, &plain).await;
        let mut batch = vec![release(&holder)];
        batch.extend(in_a_batch.then(|| release(&plain)));
        let mut answers = holder_store.apply(&batch).await.into_iter().map(Result::unwrap);
        let passed_on = Outcome::released(true, true);
        assert_eq!(answers.next(), Some(passed_on));
        let freed = Outcome::released(true, false);
        assert!(answers.all(|answer| answer == freed));

        let row = row(&other, name).await;
        let owner = ask_of(&mut next).owner;
        assert_eq!(
            (row.owner, row.lease_id, &*row.holder),
            (owner, next.lease_id, "host/2 next")
        );
        assert_eq!(
            (row.reentrant_count, row.revoked, row.next.clone()),
            (1, false, None)
        );
        assert_eq!(row.fence_ceiling, row.fence_token + 5);
        assert_eq!(row.expire_at - row.acquired_at, 3_000_000);
        assert!(row.fence_token > before && row.wanted_until > row.now);
        let wake_up = WakeUp::passed_on(key(name), next.lease_id, row.fence_token);
        assert_eq!(told.recv().await, Some(wake_up));
        // The former holder is out, and the successor asks as if it had heard nothing.
        assert_eq!(ask(&holder_store, &extend(&holder, 1)).await, Outcome::Lost);
        assert_eq!(ask(&holder_store, &release(&holder)).await, Outcome::Lost);
        assert_eq!(token(&ask(&other, &next).await), row.fence_token);
        ask(&other, &release(&next)).await;
        assert_eq!(told.recv().await, Some(WakeUp::Released(key(name))));
    }
    // Anybody may notify anything.
    let channel = format!("'dblock_' || '{}'::regclass::oid", bench.table);
    bench
        .run(&format!(
            "SELECT pg_notify({channel}, payload)
             FROM unnest(ARRAY['', 'x', 'p', 'phot', 'p' || gen_random_uuid() || ' k', 'r', 'held', 'rlast']) payload"
        ))
        .await;
    assert_eq!(told.recv().await, Some(WakeUp::Released(key("last"))));
}

/// Who is next: the first one, until it has withdrawn, is dead, or one has waited for longer.
#[tokio::test]
async fn the_row_names_one_successor() {
    let Some(bench) = Bench::new("successor").await else {
        return;
    };
    let store = bench.store();
    let holder = acquire("a");
    token(&ask(&store, &holder).await);
    let next = async || row(&store, "a").await.next;
    let is_next =
        async |request: &Request| next().await.is_some_and(|next| next.lease_id == request.lease_id);
    let late = async |name: &str, waited| {
        let mut request = queueing(name, WISH);
        ask_of(&mut request).queue = Some(waited);
        ask(&store, &request).await;
        request
    };
    let first = late("a", Duration::from_secs(1)).await;
    let said: Successor = next().await.unwrap();
    assert_eq!(
        (said.lease_id, said.ttl, said.spare_tokens),
        (first.lease_id, 3_000_000, 0)
    );
    // Asking again says the same; the same lease for another owner is written, and never loses its place.
    queued(&ask(&store, &first).await);
    assert_eq!(next().await, Some(said.clone()));
    let mut other_owner = first.clone();
    ask_of(&mut other_owner).owner = Uuid::now_v7();
    ask_of(&mut other_owner).queue = Some(Duration::ZERO);
    queued(&ask(&store, &other_owner).await);
    let other_said = next().await.unwrap();
    assert_eq!(
        (other_said.owner, other_said.since),
        (ask_of(&mut other_owner).owner, said.since)
    );
    // One that does not queue is told too that it is next.
    let mut unqueued = first.clone();
    ask_of(&mut unqueued).queue = None;
    ask_of(&mut unqueued).wanted_for = None;
    queued(&ask(&store, &unqueued).await);

    // Longer by half of what it takes.
    late("a", Duration::from_millis(1_050)).await;
    assert!(is_next(&first).await);
    let older = late("a", Duration::from_secs(9)).await;
    assert!(is_next(&older).await);
    assert!(matches!(ask(&store, &first).await, Outcome::Busy(_)));
    // Who is not next withdraws nothing.
    assert_eq!(ask(&store, &release(&first)).await, Outcome::Lost);
    assert_eq!(ask(&store, &release(&older)).await, Outcome::Withdrawn);
    assert_eq!(next().await, None);
    assert_eq!(ask(&store, &release(&older)).await, Outcome::Lost);

    let dead = late("a", Duration::from_secs(9)).await;
    bench.run("UPDATE {t} SET next_until = acquired_at").await;
    let alive = late("a", Duration::ZERO).await;
    assert!(is_next(&alive).await && !is_next(&dead).await);
    bench.run("UPDATE {t} SET next_until = acquired_at").await;
    let freed = ask(&store, &release(&holder)).await;
    assert!(
        matches!(
            freed,
            Outcome::Released {
                freed: true,
                passed_on: false,
                ..
            }
        ),
        "{freed:?}"
    );
    assert_eq!(next().await, None);
    // A dead one withdraws too, also from an expired row, and a new lease has no successor.
    for ending in ["withdraws", "is forgotten", "is freed by force"] {
        let holder = acquire(ending);
        ask(&store, &holder).await;
        let gone = late(ending, Duration::ZERO).await;
        if ending != "is freed by force" {
            bench
                .run("UPDATE {t} SET expire_at = acquired_at, next_until = acquired_at WHERE next_lease IS NOT NULL")
                .await;
        }
        match ending {
            "withdraws" => assert_eq!(ask(&store, &release(&gone)).await, Outcome::Withdrawn),
            "is forgotten" => drop(token(&ask(&store, &acquire(ending)).await)),
            _ => assert!(store.force_release(&key(ending)).await.unwrap()),
        }
        assert_eq!(row(&store, ending).await.next, None, "{ending}");
    }
}

/// What all racers see: who is inside, and the newest token.
#[derive(Default)]
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

    fn entries(&self) -> i64 {
        self.granted.load(SeqCst) + self.woken.load(SeqCst)
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
        while self.seen.entries() < entries {
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
            Outcome::Lost | Outcome::Released { freed: true, .. } => {}
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
            matches!(released, Outcome::Released { freed: true, .. }),
            "{released:?}"
        );
        for late in [extend(request, 1), release(request)] {
            let outcome = ask(&self.store, &late).await;
            let fits = matches!(
                outcome,
                Outcome::Lost | Outcome::Skipped | Outcome::Released { freed: false, .. }
            );
            assert!(fits, "{outcome:?}");
        }
    }
}

/// At most one lease is inside, tokens only grow, and who hears that the row was passed on may enter without a request.
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
        .expect("nobody enters any more");
    let (granted, woken, withdrawn) = (&seen.granted, &seen.woken, &seen.withdrawn);
    eprintln!("granted: {granted:?}, woken: {woken:?}, withdrawn: {withdrawn:?}");
    assert!(woken.load(SeqCst) > 20 && granted.load(SeqCst) > 0 && withdrawn.load(SeqCst) > 0);
}

/// A row that is locked by somebody's transaction: who is next or could become it is told nothing rather than that the
/// key is busy, and others are told that it is. Nobody is told to be next.
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
    queued(&ask(&store, &next).await);

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
                let Ok(Outcome::Released {
                    freed: true,
                    passed_on,
                    ..
                }) = answer
                else {
                    panic!("{answer:?}");
                };
                assert!(!passed_on || passes_on);
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
