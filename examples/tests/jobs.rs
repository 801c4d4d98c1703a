//! The schedule of `examples/jobs`: each slot once over all nodes, whatever becomes of the node that began
//! it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dblock::store::MemoryStore;
use dblock::{LockError, LockManager, Once, RunError};
use dblock_examples::jobs::{JobError, Schedule};
use futures_util::future::join_all;
use tokio::sync::Notify;

/// Nodes with managers of their own, over the same rows.
async fn nodes<const N: usize>() -> [Schedule; N] {
    let store = MemoryStore::new();
    let node = async |_| {
        let locks = LockManager::builder(store.clone()).build().await.unwrap();
        Schedule::new(locks, "report", Duration::from_mins(1))
    };
    join_all((0..N).map(node)).await.try_into().unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_slot_runs_on_one_node() {
    let (nodes, done) = (nodes::<3>().await, AtomicU32::new(0));
    let job = async |_slot| {
        tokio::task::yield_now().await;
        done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    for slot in 1..=5 {
        let answers = join_all(nodes.iter().map(|node| node.slot(slot, job))).await;
        let ran = answers
            .iter()
            .filter(|answer| matches!(answer, Ok(Once::Ran(()))));
        assert_eq!(ran.count(), 1, "{answers:?}");
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    assert_eq!(done.load(Ordering::SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn another_node_takes_over_from_one_that_dies_in_the_job() {
    let ([dying, other], begun) = (nodes::<2>().await, Notify::new());
    let never = dying.slot(1, async |_slot| {
        begun.notify_one();
        std::future::pending().await
    });
    tokio::select! {
        _ = never => panic!("it never ends"),
        () = begun.notified() => {}
    }
    assert!(matches!(
        other.slot(1, async |_slot| Ok(())).await,
        Ok(Once::Ran(()))
    ));
    // A node that is late finds it done.
    let late = dying.slot(1, async |_slot| panic!("twice")).await;
    assert!(matches!(late, Ok(Once::Replayed(()))), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_fails_is_given_up_after_three_attempts() {
    let [node] = nodes::<1>().await;
    let fail = async |_slot| Err(JobError::Job("no paper".into()));
    for _ in 0..3 {
        assert!(matches!(node.slot(1, fail).await, Err(JobError::Job(_))));
    }
    let refused = node.slot(1, fail).await.unwrap_err();
    let JobError::Lock(LockError::Run { reason, .. }) = refused else {
        panic!("{refused}");
    };
    assert!(matches!(reason, RunError::GaveUp { attempts: 3, .. }), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn the_schedule_ends_with_its_manager() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let schedule = Schedule::new(locks.clone(), "report", Duration::from_mins(1));
    let begun = Notify::new();
    let work = schedule.run(async |_slot| {
        begun.notify_one();
        Ok(())
    });
    tokio::join!(work, async {
        begun.notified().await;
        locks.shutdown(Duration::from_secs(1)).await;
    });
}
