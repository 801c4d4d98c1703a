//! The hand-over between processes: who waits has the next grant reserved, and comes in when it hears that the
//! holder has left, before the release is written. On a clock that jumps from event to event.

use std::sync::Arc;
use std::time::Duration;

use dblock::store::{Action, LockRow, Outcome, Request, Store, StoreErrorKind};
use dblock::{Key, LockError, LockGuard, LockManager, LockOptions, LostReason};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use dblock_tests::telling_store::TellingStore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{long, patient, short};

/// Two processes over one store, each with its own faults.
struct Scene {
    telling: TellingStore,
    holding: Arc<FaultyStore>,
    waiting: Arc<FaultyStore>,
    holder: LockManager,
    waiter: LockManager,
}

type Call = JoinHandle<Result<(LockGuard, Instant), LockError>>;

impl Scene {
    fn new() -> Self {
        let telling = TellingStore::new();
        let faulty = || FaultyStore::over(Arc::new(telling.clone()) as Arc<dyn Store>);
        let (holding, waiting) = (faulty(), faulty());
        Self {
            holder: holding.manager(),
            waiter: waiting.manager(),
            holding,
            waiting,
            telling,
        }
    }

    fn wait(&self, options: LockOptions) -> Call {
        wait(&self.waiter, options)
    }

    async fn row(&self) -> LockRow {
        self.holding.row("key").await.unwrap()
    }

    /// Until the row is as wished.
    async fn until(&self, wish: impl Fn(&LockRow) -> bool) -> LockRow {
        loop {
            let row = self.row().await;
            if wish(&row) {
                return row;
            }
            sleep(ms(1)).await;
        }
    }

    async fn until_reserved(&self) -> LockRow {
        self.until(is_reserved).await
    }

    /// The holder's guard, long enough held to be announced, and a call that has the next grant reserved.
    async fn held_and_awaited(&self) -> (LockGuard, Call, LockRow) {
        let guard = self.holder.acquire("key", long()).await.unwrap();
        let call = self.wait(patient());
        let row = self.until_reserved().await;
        sleep(ms(100)).await;
        (guard, call, row)
    }
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn is_reserved(row: &LockRow) -> bool {
    row.reserved.is_some_and(|reserved| reserved.until > row.now)
}

fn wait(locks: &LockManager, options: LockOptions) -> Call {
    let locks = locks.clone();
    tokio::spawn(async move {
        let guard = locks.acquire("key", options).await?;
        Ok((guard, Instant::now()))
    })
}

/// The release takes a second to be carried out; nobody waits for it but who releases.
#[tokio::test(start_paused = true)]
async fn who_is_told_comes_in_before_the_release_is_written() {
    let scene = Scene::new();
    let (guard, call, reserved) = scene.held_and_awaited().await;
    let former = guard.fence_token();
    scene.holding.next(Kind::Release, Fault::Slow(ms(1_000)));
    let since = Instant::now();
    let release = tokio::spawn(guard.release());
    let (next, entered) = call.await.unwrap().unwrap();
    assert!(entered - since <= ms(1), "{:?}", entered - since);
    assert!(next.fence_token() > former);
    assert_eq!(next.fence_token(), reserved.reserved.unwrap().fence_token);
    let row = scene.until(|row| row.fence_token == next.fence_token()).await;
    assert!(Instant::now() - since <= ms(20), "the row follows");
    assert_ne!(row.lease_id, reserved.lease_id);
    assert_eq!((row.reentrant_count, row.reserved), (1, None));
    // The former holder's release finds nothing of its lease, which is as it should be.
    release.await.unwrap().unwrap();
    assert_eq!(scene.row().await.lease_id, row.lease_id);
    next.release().await.unwrap();
    assert!(!scene.row().await.is_held());
}

/// The answer to the last question is still on its way when the word comes.
#[tokio::test(start_paused = true)]
async fn who_is_asking_comes_in_with_the_answer() {
    let scene = Scene::new();
    let guard = scene.holder.acquire("key", long()).await.unwrap();
    scene.waiting.next(Kind::Acquire, Fault::Slow(Duration::ZERO));
    scene.waiting.next(Kind::Acquire, Fault::SlowReply(ms(300)));
    let call = scene.wait(patient());
    scene.until_reserved().await;
    sleep(ms(100)).await;
    scene.holding.next(Kind::Release, Fault::Slow(ms(1_000)));
    let since = Instant::now();
    let release = tokio::spawn(guard.release());
    let (next, entered) = call.await.unwrap().unwrap();
    let after = entered - since;
    assert!(ms(150) <= after && after <= ms(210), "{after:?}");
    release.await.unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_short_section_is_written_before_it_is_released() {
    let scene = Scene::new();
    let (guard, call, reserved) = scene.held_and_awaited().await;
    scene.holding.next(Kind::Release, Fault::Slow(ms(1_000)));
    let release = tokio::spawn(guard.release());
    let (next, _) = call.await.unwrap().unwrap();
    let token = next.fence_token();
    scene.waiting.next(Kind::Extend, Fault::Answer(Outcome::Skipped));
    scene.waiting.next(Kind::Release, Fault::Slow(ms(300)));
    next.release().await.unwrap();
    let row = scene.row().await;
    assert!(!row.is_held() && row.fence_token == token && row.lease_id != reserved.lease_id);
    // Somebody else has it by the time at which the former holder's release is carried out.
    let third = scene.waiter.acquire("key", long()).await.unwrap();
    release.await.unwrap().unwrap();
    assert!(scene.row().await.is_held());
    third.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hand_overs_go_back_and_forth_with_growing_tokens() {
    let scene = Scene::new();
    let (mut guard, mut call, _) = scene.held_and_awaited().await;
    for round in 0..20 {
        let from = [&scene.holder, &scene.waiter][round % 2];
        let token = guard.fence_token();
        guard.release().await.unwrap();
        let (next, _) = call.await.unwrap().unwrap();
        assert!(next.fence_token() > token);
        guard = next;
        call = wait(from, patient());
        scene.until_reserved().await;
        sleep(ms(60)).await;
    }
    guard.release().await.unwrap();
    call.await.unwrap().unwrap().0.release().await.unwrap();
}

/// A guard that is dropped may belong to a body that was in the middle of something; its row frees the key.
#[tokio::test(start_paused = true)]
async fn who_leaves_in_disorder_announces_nothing() {
    let scene = Scene::new();
    let (guard, call, _) = scene.held_and_awaited().await;
    scene.holding.next(Kind::Release, Fault::Slow(ms(1_000)));
    let since = Instant::now();
    drop(guard);
    let (next, entered) = call.await.unwrap().unwrap();
    assert!(entered - since >= ms(1_000), "{:?}", entered - since);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_manager_without_hand_over_neither_reserves_nor_announces() {
    let scene = Scene::new();
    let strict = |store: &Arc<FaultyStore>| {
        let store: Arc<dyn Store> = store.clone();
        LockManager::builder(store).hand_over(false).start().unwrap()
    };
    let guard = scene.holder.acquire("key", long()).await.unwrap();
    let call = wait(&strict(&scene.waiting), patient());
    sleep(ms(1_500)).await;
    assert!(!is_reserved(&scene.row().await));
    guard.release().await.unwrap();
    call.await.unwrap().unwrap().0.release().await.unwrap();

    let guard = strict(&scene.holding).acquire("key", long()).await.unwrap();
    let call = scene.wait(patient());
    scene.until_reserved().await;
    sleep(ms(100)).await;
    scene.holding.next(Kind::Release, Fault::Slow(ms(1_000)));
    let since = Instant::now();
    guard.release().await.unwrap();
    let (next, entered) = call.await.unwrap().unwrap();
    assert!(entered - since >= ms(1_000), "{:?}", entered - since);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_gives_the_reservation_back() {
    let scene = Scene::new();
    let (guard, call, _) = scene.held_and_awaited().await;
    call.abort();
    let since = Instant::now();
    scene.until(|row| !is_reserved(row)).await;
    assert!(since.elapsed() <= ms(10), "{:?}", since.elapsed());
    guard.release().await.unwrap();
    let third = LockManager::builder(Arc::new(scene.telling.clone()) as Arc<dyn Store>)
        .start()
        .unwrap();
    third
        .acquire("key", long())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Nobody comes in with the reservation: its process has died. Others get in when it lapses.
#[tokio::test(start_paused = true)]
async fn a_reservation_of_a_process_that_died_lapses() {
    let scene = Scene::new();
    let guard = scene.holder.acquire("key", long()).await.unwrap();
    let ask = Request {
        key: Key::new(None, "key").unwrap(),
        lease_id: Uuid::now_v7(),
        action: Action::Acquire {
            owner: Uuid::now_v7(),
            ttl: ms(30_000),
            holder: "dead".into(),
            wanted_for: Some(ms(3_000)),
            spare_tokens: 0,
            reserve: true,
        },
    };
    scene.telling.apply(&[ask]).await.remove(0).unwrap();
    let since = Instant::now();
    let call = scene.wait(patient());
    sleep(ms(100)).await;
    guard.release().await.unwrap();
    let (next, entered) = call.await.unwrap().unwrap();
    let after = entered - since;
    assert!(ms(3_000) <= after && after <= ms(3_100), "{after:?}");
    next.release().await.unwrap();
}

/// What lets in is only as good as the reservation: when the store does not take the claim, the body stops
/// before anybody else can come in.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_never_written_ends_with_the_reservation() {
    let scene = Scene::new();
    let (guard, call, _) = scene.held_and_awaited().await;
    scene
        .waiting
        .always(Kind::Extend, Fault::Fail(StoreErrorKind::Unreachable));
    let asked = scene.waiting.asked_to(Kind::Acquire).last().unwrap().at;
    guard.release().await.unwrap();
    let (next, _) = call.await.unwrap().unwrap();
    let lapses = scene.row().await.reserved.unwrap();
    let third = wait(
        &LockManager::builder(Arc::new(scene.telling.clone()) as Arc<dyn Store>)
            .start()
            .unwrap(),
        patient(),
    );
    let lost = next.lost().await;
    assert!(
        matches!(
            lost,
            LockError::Lost {
                reason: LostReason::Expired,
                ..
            }
        ),
        "{lost:?}"
    );
    let after = asked.elapsed();
    assert!(ms(2_000) <= after && after <= ms(2_900), "{after:?}");
    assert!(scene.row().await.now < lapses.until, "lost before it lapses");
    let (third, _) = third.await.unwrap().unwrap();
    assert!(third.fence_token() > next.fence_token());
    assert!(scene.row().await.now >= lapses.until);
    third.release().await.unwrap();
}

/// The reservation outlives the first ttl: the row must, too, since who came in counts on it.
#[tokio::test(start_paused = true)]
async fn a_ttl_shorter_than_the_reservation_excludes_as_well() {
    let scene = Scene::new();
    let guard = scene.holder.acquire("key", long()).await.unwrap();
    let call = scene.wait(short().wait(ms(30_000)));
    scene.until_reserved().await;
    sleep(ms(100)).await;
    guard.release().await.unwrap();
    let (next, _) = call.await.unwrap().unwrap();
    let third = wait(&scene.holder, patient());
    sleep(ms(2_500)).await;
    assert!(next.remaining() > Duration::ZERO, "renewed in time");
    assert!(!third.is_finished());
    next.release().await.unwrap();
    third.await.unwrap().unwrap().0.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_is_lost_is_sent_again() {
    let scene = Scene::new();
    let (guard, call, _) = scene.held_and_awaited().await;
    scene.waiting.next(Kind::Extend, Fault::ReplyLost);
    guard.release().await.unwrap();
    let (next, _) = call.await.unwrap().unwrap();
    sleep(ms(10_000)).await;
    let row = scene.row().await;
    assert_eq!((row.reentrant_count, row.fence_token), (1, next.fence_token()));
    next.release().await.unwrap();
}

/// An ask that failed may still be carried out: its lease is not asked with any more, and not left behind.
#[tokio::test(start_paused = true)]
async fn an_ask_of_unknown_outcome_gives_its_reservation_up() {
    let scene = Scene::new();
    let (guard, call, row) = scene.held_and_awaited().await;
    let mine = row.reserved.unwrap().lease_id;
    scene.waiting.next(Kind::Acquire, Fault::Twice(ms(400)));
    let asked = scene.waiting.asked_to(Kind::Acquire).len();
    scene.waiting.until_asked(Kind::Acquire, asked + 2).await;
    let row = scene.until_reserved().await;
    assert_ne!(row.reserved.unwrap().lease_id, mine);
    guard.release().await.unwrap();
    let (next, _) = call.await.unwrap().unwrap();
    sleep(ms(35_000)).await;
    assert_eq!(scene.row().await.fence_token, next.fence_token());
    next.release().await.unwrap();
    assert!(!scene.row().await.is_held());
}

/// A fence check asks for the row: it is written first.
#[tokio::test(start_paused = true)]
async fn a_nested_call_is_written_with_the_claim() {
    let scene = Scene::new();
    let (guard, call, _) = scene.held_and_awaited().await;
    scene.holding.next(Kind::Release, Fault::Slow(ms(1_000)));
    let release = tokio::spawn(guard.release());
    let (next, _) = call.await.unwrap().unwrap();
    let token = next.fence_token();
    let nested = scene.waiter.with("key", long(), async {
        let row = scene.row().await;
        assert_eq!((row.reentrant_count, row.fence_token), (2, token));
    });
    next.enter(nested).await.unwrap().unwrap();
    next.release().await.unwrap();
    release.await.unwrap().unwrap();
}
