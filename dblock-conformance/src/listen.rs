//! Wake-ups: a store that has them reports every release of a key for which its own acquires wait. A store
//! without them says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dblock_core::store::{Outcome, Released, Store, StoreError, StoreErrorKind, WakeUp};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::AnyFixture;
use super::context::{Asker, LONG, batch, existing, granted, one, within};
use super::keys::look_alikes;
use super::successor::{lapsed, queued};

/// Listens on a task of its own, from now on.
pub(super) async fn listening(
    store: Arc<dyn Store>,
) -> (mpsc::UnboundedReceiver<WakeUp>, JoinHandle<StoreError>) {
    let (tell, mut told) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        let tell = move |wake_up| drop(tell.send(wake_up));
        store.listen(&tell).await
    });
    let first = within("the store to listen", told.recv()).await;
    assert_eq!(first, Some(WakeUp::Listening), "it says first that it listens");
    (told, task)
}

/// Two listeners that have asked hear of each release, alone and in a batch, for any key. Other writes of the
/// row before the release change nothing. Without the capability, or where no wake-ups arrive, `listen` ends at
/// once as unsupported.
pub async fn releases_of_wanted_keys_are_told(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    if !(store.capabilities().wake_ups && fixture.hears()) {
        let refused = within("listen to refuse", store.listen(&|_| ())).await;
        assert_eq!(refused.kind(), StoreErrorKind::Unsupported, "{refused}");
        return;
    }
    let askers: Vec<Asker> = look_alikes().iter().map(|name| Asker::new(name)).collect();
    for asker in &askers {
        granted(&*store, asker.acquire(LONG)).await;
    }
    let mut listeners = Vec::new();
    for _ in 0..2 {
        let listener = fixture.store().await;
        listeners.push(listening(Arc::clone(&listener)).await);
        let wishes: Vec<_> = askers
            .iter()
            .map(|asker| Asker::new(asker.key.as_str()).acquire_wanting(LONG))
            .collect();
        // Together, because a store may forget an ask after ten seconds.
        for waits in batch(&*listener, &wishes).await {
            assert!(matches!(waits, Outcome::Busy(_)), "{waits:?}");
        }
    }
    let writes: Vec<_> = askers.iter().map(|asker| asker.extend(1, LONG)).collect();
    for outcome in batch(&*store, &writes).await {
        assert!(matches!(outcome, Outcome::Extended { .. }), "{outcome:?}");
    }
    let (alone, together) = askers.split_at(3);
    for asker in alone {
        let outcome = one(&*store, asker.release()).await;
        assert_eq!(outcome, Outcome::Released(Released::Freed));
    }
    let releases: Vec<_> = together.iter().map(Asker::release).collect();
    batch(&*store, &releases).await;

    for (told, task) in &mut listeners {
        let mut missing: std::collections::BTreeSet<_> =
            askers.iter().map(|asker| asker.key.clone()).collect();
        within("every release to be told", async {
            while !missing.is_empty() {
                match told.recv().await {
                    Some(WakeUp::Released(key)) => drop(missing.remove(&key)),
                    Some(WakeUp::Listening) => {}
                    Some(other) => panic!("{other:?} of nobody's"),
                    None => panic!(
                        "the listener ended: {:?}; it has not told {missing:?}",
                        task.await
                    ),
                }
            }
        })
        .await;
    }
    for (_, task) in listeners {
        task.abort();
    }
}

/// Listeners that have asked hear who got a row that was passed on, alone and in a batch beside one that was
/// freed. A key whose successor has lapsed is reported as freed.
pub async fn passed_on_rows_are_told(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let can = store.capabilities();
    if !(can.wake_ups && can.queues && can.clock && fixture.hears()) {
        return;
    }
    // Listeners of the successor's process and of another one that waits.
    let (own, others) = (listening(Arc::clone(&other)).await, fixture.store().await);
    let mut listeners = [own, listening(Arc::clone(&others)).await];
    let mut expected = BTreeMap::new();
    let mut releases = Vec::new();
    for n in 0..6 {
        // A key of full length, with characters that need care.
        let name = format!("'{n}\\\"\u{1f512} {}", "n".repeat(240));
        let (holder, next) = queued(&*other, &name).await;
        expected.insert(holder.key.clone(), fixture.one_row().then_some(next));
        releases.push(holder.release());
    }
    let (freed, _) = lapsed(&*other, "lapsed").await;
    expected.insert(freed.key.clone(), None);
    releases.push(freed.release());
    for key in expected.keys() {
        one(&*others, Asker::new(key.as_str()).acquire_wanting(LONG)).await;
    }
    for alone in releases.drain(..2) {
        one(&*store, alone).await;
    }
    batch(&*store, &releases).await;
    for (told, task) in &mut listeners {
        let mut missing = expected.clone();
        within("every pass-on to be told", async {
            while !missing.is_empty() {
                match told.recv().await {
                    Some(WakeUp::PassedOn {
                        key,
                        lease_id,
                        fence_token,
                        ..
                    }) => {
                        let next = expected[&key].as_ref().expect("the row was passed on");
                        let row = existing(&*store, &key).await;
                        assert_eq!((lease_id, fence_token), (next.lease_id, row.fence_token));
                        missing.remove(&key);
                    }
                    Some(WakeUp::Released(key)) => {
                        assert!(expected[&key].is_none(), "{key:?} was not freed");
                        missing.remove(&key);
                    }
                    Some(_) => {}
                    None => panic!("the listener ended; it has not told {missing:?}"),
                }
            }
        })
        .await;
        task.abort();
    }
}

/// Those who wait for a shared lock are told how many are inside and who comes first, or that they should ask.
pub async fn room_is_told(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let can = store.capabilities();
    if !(can.wake_ups && can.shares && fixture.hears()) {
        return;
    }
    let other = fixture.store().await;
    let (mut told, task) = listening(Arc::clone(&other)).await;
    let [first, second, waits] = std::array::from_fn(|_| Asker::new("room"));
    for asker in [&first, &second] {
        granted(&*store, asker.acquire_with(LONG, |ask| ask.limit = Some(2))).await;
    }
    let third = fixture.store().await;
    let queue_up = async |store: &dyn Store, asker: &Asker| {
        let ask = asker.acquire_with(LONG, |ask| {
            (ask.limit, ask.wanted_for) = (Some(2), Some(LONG));
            ask.queue = Some(Duration::ZERO);
        });
        let answer = one(store, ask.clone()).await;
        assert!(matches!(answer, Outcome::Queued { .. }), "{answer:?}");
        ask
    };
    let ask = queue_up(&*other, &waits).await;
    one(&*store, second.release()).await;
    let mut heard = async |inside, next: Option<Uuid>| {
        let heard = within("room to be told", told.recv()).await.expect("it listens");
        let is_exact = matches!(&heard, WakeUp::MayEnter { key, inside: told, next: first, .. }
            if *key == ask.key && *told == inside && first.map(|(lease, _)| lease) == next);
        assert!(
            is_exact || heard == WakeUp::Released(ask.key.clone()),
            "{heard:?}"
        );
    };
    heard(1, Some(ask.lease_id)).await;
    granted(&*other, ask.clone()).await;
    heard(2, None).await;
    let gives_up = Asker::new("room");
    queue_up(&*third, &gives_up).await;
    assert_eq!(one(&*third, gives_up.release()).await, Outcome::Withdrawn);
    heard(2, None).await;
    task.abort();
}

/// Dropping `listen` breaks nothing: the handle goes on, and can listen again.
pub async fn listening_can_be_dropped(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    if !(store.capabilities().wake_ups && fixture.hears()) {
        return;
    }
    for round in 0..3 {
        let (mut told, task) = listening(Arc::clone(&store)).await;
        let asker = Asker::new(&format!("again {round}"));
        granted(&*store, asker.acquire(LONG)).await;
        one(
            &*store,
            Asker::new(asker.key.as_str()).acquire_wanting(Duration::from_secs(5)),
        )
        .await;
        one(&*store, asker.release()).await;
        let heard = within("the release to be told", told.recv()).await;
        assert_eq!(heard, Some(WakeUp::Released(asker.key.clone())));
        task.abort();
        let ended = task.await.expect_err("it was aborted");
        assert!(ended.is_cancelled(), "{ended}");
    }
}
