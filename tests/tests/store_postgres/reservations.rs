//! Sessions that reserve, announce, claim and withdraw at once; and rows of whose reservation somebody else's
//! transaction has the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use dblock::store::postgres::PostgresStore;
use dblock::store::{Action, Leave, Outcome, Request, Reservation, Store, Successor, WakeUp};
use sqlx::{AssertSqlSafe, Connection};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

use crate::bench::{Bench, acquire, ask, extend, insist, key, release, reserving, token, waiting};

const WISH: Duration = Duration::from_secs(30);

fn claim(of: &Request, fence_token: i64) -> Request {
    let mut request = extend(of, 1);
    if let Action::Extend { successor, .. } = &mut request.action {
        *successor = Some(Successor {
            owner: Uuid::now_v7(),
            holder: "host/2 claims".into(),
            fence_token,
        });
    }
    request
}

/// What all racers see: who is inside, and the newest token.
#[derive(Default)]
struct Seen {
    inside: AtomicI64,
    newest: AtomicI64,
    grants: AtomicI64,
    claims: AtomicI64,
    withdrawn: AtomicI64,
}

impl Seen {
    fn enter(&self, fence_token: i64) {
        assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "two leases at once");
        assert!(
            self.newest.swap(fence_token, SeqCst) < fence_token,
            "a token did not grow"
        );
    }

    fn leave(&self) {
        assert_eq!(self.inside.fetch_sub(1, SeqCst), 1);
    }

    fn entries(&self) -> i64 {
        self.grants.load(SeqCst) + self.claims.load(SeqCst)
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
            let request = reserving("hot", WISH);
            self.until_over(&request, round).await;
        }
    }

    /// One lease, from its first request to its end.
    async fn until_over(&mut self, request: &Request, round: u64) {
        while self.told.try_recv().is_ok() {}
        loop {
            let since = Instant::now();
            match self.ask(request).await {
                Outcome::Granted { fence_token, .. } => {
                    self.seen.enter(fence_token);
                    self.seen.grants.fetch_add(1, SeqCst);
                    let outcome = insist(&self.store, &extend(request, 2)).await;
                    assert!(matches!(outcome, Outcome::Extended { .. }), "{outcome:?}");
                    return self.leave(request, round).await;
                }
                Outcome::Reserved(_, reservation) => {
                    if round.is_multiple_of(7) {
                        let outcome = insist(&self.store, &release(request)).await;
                        assert_eq!(outcome, Outcome::Withdrawn);
                        self.seen.withdrawn.fetch_add(1, SeqCst);
                        return;
                    }
                    if self.has_left(&reservation).await {
                        assert!(since.elapsed() < reservation.remaining, "the test took too long");
                        self.seen.enter(reservation.fence_token);
                        self.seen.claims.fetch_add(1, SeqCst);
                        // The former holder's release may come before or after this.
                        let outcome = insist(&self.store, &claim(request, reservation.fence_token)).await;
                        assert!(matches!(outcome, Outcome::Extended { .. }), "{outcome:?}");
                        return self.leave(request, round).await;
                    }
                }
                Outcome::Busy(_) if round.is_multiple_of(3) => {
                    // It was not next, so there is nothing to withdraw.
                    let outcome = insist(&self.store, &release(request)).await;
                    assert_eq!(outcome, Outcome::Lost);
                    return;
                }
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

    /// Waits until the lease in front has left, but not for long.
    async fn has_left(&mut self, reservation: &Reservation) -> bool {
        let heard = async {
            loop {
                match self.told.recv().await.expect("it goes on listening") {
                    WakeUp::Left(left, lease) if left == key("hot") && lease == reservation.behind => {
                        return true;
                    }
                    WakeUp::Released(free) if free == key("hot") => return false,
                    _ => {}
                }
            }
        };
        timeout(Duration::from_millis(50), heard).await.unwrap_or(false)
    }

    async fn leave(&self, request: &Request, round: u64) {
        self.seen.leave();
        let releases = [release(request)];
        let announced =
            !round.is_multiple_of(5) && self.store.announce(&[leave(request)]).await.unwrap() == [true];
        let outcome = insist(&self.store, &releases[0]).await;
        match outcome {
            Outcome::Released { freed: true, .. } => {}
            Outcome::Lost if announced => {}
            other => panic!("{other:?} after announced: {announced}"),
        }
        for late in [extend(request, 1), claim(request, i64::MAX)] {
            let outcome = ask(&self.store, &late).await;
            assert!(matches!(outcome, Outcome::Lost | Outcome::Skipped), "{outcome:?}");
        }
    }
}

/// At most one lease is inside, tokens only grow, and who hears that the lease in front has left may come in at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_reservations_let_one_in_at_a_time() {
    let Some(bench) = Bench::new("reservations").await else {
        return;
    };
    let seen = Arc::new(Seen::default());
    // Dropping them at a panic ends them all.
    let (mut listeners, mut racers) = (JoinSet::new(), JoinSet::new());
    for number in 0..6 {
        let (tell, mut told) = mpsc::unbounded_channel();
        let store = bench.store();
        listeners.spawn(async move { store.listen(&move |wake_up| drop(tell.send(wake_up))).await });
        assert_eq!(told.recv().await, Some(WakeUp::Listening));
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
        .expect("nobody gets in any more");
    let (grants, claims, withdrawn) = (&seen.grants, &seen.claims, &seen.withdrawn);
    eprintln!("granted: {grants:?}, claimed: {claims:?}, withdrawn: {withdrawn:?}");
    assert!(claims.load(SeqCst) > 20 && grants.load(SeqCst) > 20 && withdrawn.load(SeqCst) > 0);
}

/// A row that is locked by somebody's transaction: who could have been next is told nothing rather than that the key
/// is busy, and others are told that it is. Announcing waits for nothing.
#[tokio::test]
async fn a_locked_row_is_not_busy_for_who_may_be_next() {
    let Some(bench) = Bench::new("reservations_locked").await else {
        return;
    };
    let store = bench.store();
    let [unreserved, reserved] = ["unreserved", "reserved"].map(acquire);
    for holder in [&unreserved, &reserved] {
        token(&ask(&store, holder).await);
        let busy = ask(&store, &waiting(holder.key.as_str(), WISH)).await;
        assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
    }
    let next = reserving("reserved", WISH);
    assert!(matches!(ask(&store, &next).await, Outcome::Reserved(..)));

    let mut user = bench.user().await;
    let mut transaction = user.begin().await.unwrap();
    let lock = format!("SELECT FROM {} FOR UPDATE", bench.table);
    sqlx::query(AssertSqlSafe(lock))
        .execute(&mut *transaction)
        .await
        .unwrap();
    for (request, is_busy) in [
        (reserving("unreserved", WISH), false),
        (waiting("unreserved", WISH), true),
        (next.clone(), false),
        (
            Request {
                lease_id: next.lease_id,
                ..waiting("reserved", WISH)
            },
            false,
        ),
        (reserving("reserved", WISH), true),
        (waiting("reserved", WISH), true),
    ] {
        let outcome = ask(&store, &request).await;
        let fits = match &outcome {
            Outcome::Busy(_) => is_busy,
            Outcome::Skipped => !is_busy,
            _ => false,
        };
        assert!(fits, "{request:?} was answered with {outcome:?}");
    }
    for outcome in store
        .apply(&[claim(&next, 1), reserving("unreserved", WISH)])
        .await
    {
        assert_eq!(outcome.unwrap(), Outcome::Skipped);
    }
    assert_eq!(ask(&store, &release(&next)).await, Outcome::Skipped);
    let told = store.announce(&[leave(&unreserved), leave(&reserved)]).await;
    assert_eq!(told.unwrap(), [false, true]);
    transaction.rollback().await.unwrap();
    assert_eq!(ask(&store, &release(&next)).await, Outcome::Withdrawn);
}

/// Its word is its lease.
fn leave(request: &Request) -> Leave {
    Leave {
        key: request.key.clone(),
        lease_id: request.lease_id,
        word: request.lease_id,
    }
}

/// What is withdrawn from a free key wakes the others that wait for it; from a held one, nobody: its release will.
#[tokio::test]
async fn a_withdrawal_wakes_the_others_when_nobody_is_inside() {
    let Some(bench) = Bench::new("reservations_withdrawn").await else {
        return;
    };
    let (store, listening) = (bench.store(), bench.store());
    let (tell, mut told) = mpsc::unbounded_channel();
    let listener =
        tokio::spawn(async move { listening.listen(&move |wake_up| drop(tell.send(wake_up))).await });
    assert_eq!(told.recv().await, Some(WakeUp::Listening));
    for name in ["held", "free"] {
        let (holder, next) = (acquire(name), reserving(name, WISH));
        token(&ask(&store, &holder).await);
        assert!(matches!(ask(&store, &next).await, Outcome::Reserved(..)));
        if name == "free" {
            ask(&store, &release(&holder)).await;
            assert_eq!(told.recv().await, Some(WakeUp::Released(key(name))));
        }
        assert_eq!(ask(&store, &release(&next)).await, Outcome::Withdrawn);
    }
    assert_eq!(told.recv().await, Some(WakeUp::Released(key("free"))));
    // Anybody may notify anything.
    let channel = format!("'dblock_' || '{}'::regclass::oid", bench.table);
    bench
        .run(&format!(
            "SELECT pg_notify({channel}, payload)
             FROM unnest(ARRAY['', 'x', 'l', 'lhot', 'r', 'held', 'rlast']) payload"
        ))
        .await;
    assert_eq!(told.recv().await, Some(WakeUp::Released(key("last"))));
    listener.abort();
}
