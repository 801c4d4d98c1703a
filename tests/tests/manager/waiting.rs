//! What a call that waits is told, and deadlocks.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::{Key, LockError, LockManager, OnCrash, RunOptions, Waiting};
use dblock_tests::faulty_store::FaultyStore;
use dblock_tests::{Backend, on_every_store};
use tokio::sync::{Barrier, Notify, mpsc};
use tokio::time::Instant;

use crate::{long, patient};

on_every_store!(
    a_call_that_waits_is_told_who_has_the_lock,
    a_deadlock_between_processes_is_named,
    a_deadlock_in_one_process_is_named,
    a_wait_for_a_busy_holder_is_no_deadlock,
);

async fn a_call_that_waits_is_told_who_has_the_lock(backend: Backend) {
    let (holds, waits) = (backend.manager().await, backend.manager().await);
    let guard = holds.lock("key").options(&long()).acquire().await.unwrap();
    let (told, mut tells) = mpsc::unbounded_channel::<Waiting>();
    let options = patient().on_wait(move |waiting| told.send(waiting.clone()).unwrap());
    let first = waits.lock("key").options(&patient()).acquire();
    let second = waits.lock("key").options(&options).acquire();
    let ends = async {
        let waiting = tells.recv().await.unwrap();
        assert_eq!((waiting.key.as_str(), waiting.ahead), ("key", 1));
        let holder = waiting.holder.as_ref().expect("a store names the holder");
        assert_eq!(holder.fence_token, guard.fence_token());
        assert!(waiting.waited >= Duration::from_secs(1), "{waiting:?}");
        guard.release().await.unwrap();
    };
    let releases = async { first.await.unwrap().release().await.unwrap() };
    // In the order in which they come.
    let ((), second, ()) = tokio::join!(releases, second, ends);
    second.unwrap().release().await.unwrap();
}

async fn a_deadlock_between_processes_is_named(backend: Backend) {
    two_wait_for_each_other(&backend.manager().await, &backend.manager().await).await;
}

async fn a_deadlock_in_one_process_is_named(backend: Backend) {
    let locks = backend.manager().await;
    two_wait_for_each_other(&locks, &locks).await;
}

/// The first one gives up, and then the second goes on.
async fn two_wait_for_each_other(one: &LockManager, two: &LockManager) {
    let both_hold = Barrier::new(2);
    let first = one.lock("first").options(&patient()).run(async {
        both_hold.wait().await;
        one.lock("second")
            .wait(Duration::from_secs(4))
            .run(async {})
            .await
    });
    let second = two.lock("second").options(&patient()).run(async {
        both_hold.wait().await;
        two.lock("first").options(&patient()).run(async {}).await
    });
    let (first, second) = tokio::join!(first, second);
    let refused = first.unwrap().unwrap_err();
    let LockError::Timeout { key, deadlock, .. } = &refused else {
        panic!("{refused:?}");
    };
    assert_eq!(key.as_str(), "second");
    assert_eq!(deadlock.as_deref().map(Key::as_str), Some("first"), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("its holder waited for \"first\", which this call chain holds"),
        "{refused}"
    );
    second.unwrap().unwrap();
}

/// Somebody waits for the key that the call holds, but that is not the one whom the call waits for.
async fn a_wait_for_a_busy_holder_is_no_deadlock(backend: Backend) {
    let (one, two, three) = (
        backend.manager().await,
        backend.manager().await,
        backend.manager().await,
    );
    let guard = two.lock("second").options(&long()).acquire().await.unwrap();
    let holds_first = Notify::new();
    let calls = one.lock("first").options(&patient()).run(async {
        holds_first.notify_one();
        let wait = Duration::from_millis(2_500);
        one.lock("second").wait(wait).run(async {}).await
    });
    let waits = async {
        holds_first.notified().await;
        three.lock("first").options(&patient()).acquire().await
    };
    let (refused, waited) = tokio::join!(calls, waits);
    let refused = refused.unwrap().unwrap_err();
    assert!(
        matches!(refused, LockError::Timeout { deadlock: None, .. }),
        "{refused:?}"
    );
    waited.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_told_once_a_second() {
    let store = FaultyStore::memory();
    let (holds, waits) = (store.manager(), store.other_process());
    let guard = holds.lock("key").options(&long()).acquire().await.unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tells = {
        let (told, since) = (Arc::clone(&told), Instant::now());
        move |_: &Waiting| told.lock().unwrap().push(since.elapsed().as_secs())
    };
    let waiting = waits
        .lock("key")
        .wait(Duration::from_millis(3_500))
        .on_wait(tells);
    assert!(waiting.acquire().await.unwrap_err().is_busy());
    assert_eq!(*told.lock().unwrap(), [1, 2, 3]);
    guard.release().await.unwrap();
}

/// A function that panics ends its own call only, and leaves no place behind.
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_function_ends_the_call() {
    let store = FaultyStore::memory();
    let (holds, waits) = (store.manager(), store.other_process());
    let guard = holds.lock("key").options(&long()).acquire().await.unwrap();
    let panics = patient().on_wait(|_| panic!("of the application"));
    let waiting = {
        let waits = waits.clone();
        tokio::spawn(async move { waits.lock("key").options(&panics).acquire().await })
    };
    assert!(waiting.await.unwrap_err().is_panic());
    let next = waits.lock("key").options(&patient()).acquire();
    let (next, released) = tokio::join!(next, guard.release());
    released.unwrap();
    next.unwrap().release().await.unwrap();
}

/// A receiver of what is told ends when the call has got the lock.
#[tokio::test]
async fn a_lock_does_not_keep_the_function() {
    let store = FaultyStore::memory();
    let (told, mut tells) = mpsc::unbounded_channel::<Waiting>();
    let options = patient();
    let locks = store.manager();
    let waiting = locks
        .lock("key")
        .options(&options)
        .on_wait(move |waiting| told.send(waiting.clone()).unwrap());
    let guard = waiting.acquire().await.unwrap();
    assert!(tells.recv().await.is_none());
    guard.release().await.unwrap();
}

/// A lease that has ended is no lock that others wait for in vain.
#[tokio::test(start_paused = true)]
async fn a_lost_lock_is_no_deadlock() {
    let store = FaultyStore::memory();
    let (one, two) = (store.manager(), store.other_process());
    let guard = two.lock("second").options(&long()).acquire().await.unwrap();
    let signalled = long().on_lost(dblock::OnLost::Signal);
    let (is_lost, refused) = (Notify::new(), Notify::new());
    let calls = one.lock("first").options(&signalled).run(async {
        one.admin().force_release("first").await.unwrap();
        dblock::current().unwrap().lost().await;
        is_lost.notify_one();
        let wait = Duration::from_millis(2_500);
        let result = one.lock("second").wait(wait).run(async {}).await;
        refused.notify_one();
        result
    });
    let waits = async {
        is_lost.notified().await;
        let third = store.other_process();
        let first = third.lock("first").options(&long()).acquire().await.unwrap();
        let waiting = guard.enter(async { two.lock("first").wait(Duration::from_secs(20)).acquire().await });
        let (waited, ()) = tokio::join!(waiting, async {
            refused.notified().await;
            first.release().await.unwrap();
        });
        waited.unwrap().unwrap().release().await.unwrap();
    };
    let (result, ()) = tokio::join!(calls, waits);
    let error = result.unwrap().unwrap_err();
    assert!(
        matches!(error, LockError::Timeout { deadlock: None, .. }),
        "{error:?}"
    );
}

/// Several keys, a leader, a run: the key is the one that is busy.
#[tokio::test(start_paused = true)]
async fn each_kind_of_call_is_told() {
    let store = FaultyStore::memory();
    let (holds, waits) = (store.manager(), store.other_process());
    let guard = holds.lock("key").options(&long()).acquire().await.unwrap();
    let (told, mut tells) = mpsc::unbounded_channel::<Waiting>();
    let tells_it = move |waiting: &Waiting| told.send(waiting.clone()).unwrap();
    let (waiting, leading) = (patient().on_wait(tells_it.clone()), long().on_wait(tells_it));
    let run = RunOptions::new(Duration::from_hours(1), OnCrash::Stop).lock(waiting.clone());
    let several = async { drop(waits.lock(["a", "key"]).options(&waiting).acquire().await) };
    let leader = async { drop(waits.lock("key").options(&leading).lead(async |_| ()).await) };
    let once = async { drop(waits.run_once("key", run, async |_| Ok::<_, LockError>(())).await) };
    let calls: [Pin<Box<dyn Future<Output = ()>>>; 3] = [Box::pin(several), Box::pin(leader), Box::pin(once)];
    for (number, call) in calls.into_iter().enumerate() {
        tokio::select! {
            () = call => panic!("call {number} ended"),
            heard = tells.recv() => assert_eq!(heard.unwrap().key.as_str(), "key"),
        }
    }
    guard.release().await.unwrap();
}
