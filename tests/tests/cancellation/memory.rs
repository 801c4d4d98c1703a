//! The whole matrix, on the memory store behind [`FaultyStore`], under paused time: each bound is exact.
//!
//! Each case has a runtime of its own, so that every task in it is the manager's or the store's.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use dblock::conformance::poll::{DropWhen, drop_after};
use dblock::store::{Outcome, StoreErrorKind};
use dblock::{LockManager, LockOptions};
use dblock_tests::faulty_store::{ALL, Fault, FaultyStore, Kind};
use tokio::runtime::{Builder, Handle};
use tokio::time::{Instant, sleep};

use crate::calls::{CALLS, Call, KEY};

const TTL: Duration = Duration::from_secs(30);

/// Longer than a third of the ttl: the lease is renewed while the call is inside.
const INSIDE: Duration = Duration::from_secs(11);

/// For how long the manager may have work after the drop: the release of a grant that may be on its way is
/// resent until its ttl has passed, and a release that is on its way when the lease ends for one ttl more.
const SETTLED: Duration = Duration::from_secs(65);

/// How long a slow store takes.
const SLOW: Duration = Duration::from_millis(400);

/// What the engine does without waiting for anything takes no time. The memory store is at the grain of
/// tokio's clock.
const AT_ONCE: Duration = Duration::from_millis(5);

/// The first pause before a request that failed is sent again.
const FIRST_RETRY: Duration = Duration::from_millis(60);

/// The longest pause before a request that failed again and again is sent once more. What is left of it when
/// the call is dropped goes by before the release.
const LONGEST_RETRY: Duration = Duration::from_millis(1001);

/// How the store answers the requests of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Ok,
    /// Another process holds the key; for a request of a holder: the row is locked by somebody.
    Busy,
    /// Not carried out, and it says so.
    Error,
    Slow,
    /// Not carried out, and silent.
    Never,
    /// Carried out, and the connection breaks.
    ReplyLost,
    /// Carried out, and silent.
    Mute,
}

/// For how long it answers so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lasting {
    /// The next request of the kind.
    Once,
    /// Every request of the kind.
    Always,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    call: Call,
    kind: Kind,
    answer: Answer,
    lasting: Lasting,
    when: DropWhen,
    polls: usize,
}

/// While it waits; when it was woken; when what was sent is on its way; when the renewal is.
const MOMENTS: [DropWhen; 4] = [
    DropWhen::Waiting,
    DropWhen::Woken,
    DropWhen::Later(Duration::from_millis(1)),
    DropWhen::Later(Duration::from_millis(10_001)),
];

impl Case {
    fn fault(&self) -> Option<Fault> {
        match self.answer {
            Answer::Ok => None,
            Answer::Busy if self.kind == Kind::Acquire => None,
            Answer::Busy => Some(Fault::Answer(Outcome::Skipped)),
            Answer::Error => Some(Fault::Fail(StoreErrorKind::Conflict)),
            Answer::Slow => Some(Fault::Slow(SLOW)),
            Answer::Never => Some(Fault::Never),
            Answer::ReplyLost => Some(Fault::ReplyLost),
            Answer::Mute => Some(Fault::Mute),
        }
    }

    /// Another process holds the key.
    fn is_held_elsewhere(&self) -> bool {
        self.answer == Answer::Busy && self.kind == Kind::Acquire
    }

    /// For how long the row may stay held after the drop: the rule.
    fn held_for_at_most(&self) -> Duration {
        // How long the engine waits for an answer before it gives the connection up.
        let patience = match self.kind {
            Kind::Acquire => Duration::from_secs(3),
            Kind::Extend => Duration::from_secs(2),
            Kind::Release => Duration::from_millis(1500),
        };
        match (self.answer, self.kind, self.lasting) {
            (Answer::Ok, ..) => AT_ONCE,
            (Answer::Slow, ..) => SLOW + AT_ONCE,
            // No release gets through: the lease runs out.
            (Answer::Busy | Answer::Error | Answer::Never, Kind::Release, Lasting::Always) => TTL,
            (Answer::Never | Answer::Mute, _, Lasting::Once) => patience + FIRST_RETRY,
            (Answer::Never | Answer::Mute, _, Lasting::Always) => patience + LONGEST_RETRY,
            (Answer::Busy | Answer::Error | Answer::ReplyLost, _, Lasting::Once) => FIRST_RETRY,
            (Answer::Busy | Answer::Error | Answer::ReplyLost, _, Lasting::Always) => LONGEST_RETRY,
        }
    }

    /// Runs the case. Whether the call came to its end, and how long the row was held after it.
    fn run(self) -> (bool, Duration) {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let result = runtime.block_on(self.play());
        assert_eq!(runtime.metrics().num_alive_tasks(), 0, "{self:?}: a task is left");
        result
    }

    async fn play(self) -> (bool, Duration) {
        let store = FaultyStore::memory();
        let (locks, other) = (store.manager(), store.other_process());
        let base = tasks();
        let holder = if self.is_held_elsewhere() {
            Some(
                other
                    .acquire(KEY, LockOptions::new().ttl(TTL * 100))
                    .await
                    .unwrap(),
            )
        } else {
            None
        };
        match (self.fault(), self.lasting) {
            (None, _) => {}
            (Some(fault), Lasting::Once) => store.next(self.kind, fault),
            (Some(fault), Lasting::Always) => store.always(self.kind, fault),
        }

        let call = self.call.start(&locks, TTL, INSIDE);
        let ended = drop_after(call, self.polls, self.when).await.is_some();
        let dropped = Instant::now();

        if let Some(holder) = holder {
            let token = holder.fence_token();
            sleep(TTL).await;
            let row = store.row(KEY).await.unwrap();
            assert_eq!((row.fence_token, row.is_held()), (token, true), "{self:?}");
            holder.release().await.unwrap();
            sleep(Duration::from_secs(2)).await;
            let row = store.row(KEY).await.unwrap();
            assert_eq!(
                (row.fence_token, row.is_held()),
                (token, false),
                "{self:?}: it got in although it is gone"
            );
        }
        let limit = self.held_for_at_most();
        let is_held = async || store.row(KEY).await.is_some_and(|row| row.is_held());
        let held = until(self, "the row is free", limit, async || !is_held().await).await;
        // An acquire that was on its way may have been granted since.
        sleep(limit.saturating_sub(held)).await;
        assert!(!is_held().await, "{self:?}: held again after {limit:?}");
        let rest = SETTLED.saturating_sub(dropped.elapsed());
        until(self, "every release is written", rest, async || {
            locks.health().pending_releases == 0
        })
        .await;
        let rest = SETTLED.saturating_sub(dropped.elapsed());
        until(self, "no task is left", rest, async || tasks() == base).await;
        assert_eq!(store.overlaps(), [], "{self:?}: two requests for one key at once");

        store.heal();
        for manager in [&locks, &other, &locks] {
            is_good(manager, self).await;
        }
        drop((locks, other));
        until(self, "the engines stop", Duration::from_secs(3), async || {
            tasks() == 0
        })
        .await;
        (ended, held)
    }
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// The next lock is taken and released at once.
async fn is_good(locks: &LockManager, about: impl Debug) {
    let since = Instant::now();
    let guard = locks.acquire(KEY, LockOptions::new().ttl(TTL)).await;
    let guard = guard.unwrap_or_else(|error| panic!("{about:?}: {error}"));
    guard.release().await.unwrap();
    assert!(since.elapsed() <= AT_ONCE, "{about:?}: {:?}", since.elapsed());
}

async fn until(case: Case, what: &str, limit: Duration, done: impl AsyncFn() -> bool) -> Duration {
    let since = Instant::now();
    while !done().await {
        let elapsed = since.elapsed();
        assert!(elapsed < limit, "{case:?}: not within {limit:?}: {what}");
        // In growing steps, the last one up to the limit.
        let step = (elapsed / 8).max(Duration::from_millis(1));
        sleep(step.min(limit.saturating_sub(elapsed))).await;
    }
    since.elapsed()
}

/// All cases of one way to answer.
fn matrix(answer: Answer) {
    let mut cases = 0;
    let mut longest = BTreeMap::new();
    for call in CALLS {
        for kind in ALL {
            for lasting in [Lasting::Once, Lasting::Always] {
                for when in MOMENTS {
                    let mut dropped = 0;
                    for polls in 0.. {
                        let case = Case {
                            call,
                            kind,
                            answer,
                            lasting,
                            when,
                            polls,
                        };
                        assert!(polls < 100, "{case:?}: it never ends");
                        let (ended, held) = case.run();
                        cases += 1;
                        let most: &mut Duration = longest.entry((format!("{kind:?}"), lasting)).or_default();
                        *most = held.max(*most);
                        if ended {
                            break;
                        }
                        dropped += 1;
                    }
                    assert!(dropped > 1, "{call:?} was dropped in the middle");
                }
            }
        }
    }
    println!("{answer:?}: {cases} cases; the row was held after the drop for at most {longest:?}");
}

macro_rules! matrices {
    ($($name:ident: $answer:ident,)*) => {
        $(
            #[test]
            fn $name() {
                matrix(Answer::$answer);
            }
        )*
    };
}

matrices! {
    the_store_answers: Ok,
    the_key_is_busy: Busy,
    the_store_fails: Error,
    the_store_is_slow: Slow,
    the_store_never_answers: Never,
    the_reply_is_lost: ReplyLost,
    the_store_carries_out_and_never_answers: Mute,
}
