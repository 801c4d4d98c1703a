//! The whole matrix, on the memory store behind [`FaultyStore`], under paused time: each bound is exact.
//!
//! Each case has a runtime of its own, so that every task in it is the manager's or the store's.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use dblock::store::{Outcome, StoreErrorKind};
use dblock::{LockError, LockManager, LockOptions};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use dblock_tests::poll::{DropWhen, drop_after};
use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};

use crate::calls::{CALLS, Call, KEY, KEYS};

const TTL: Duration = Duration::from_secs(30);

/// Longer than a third of the ttl: the lease is renewed while the call is inside.
const INSIDE: Duration = Duration::from_secs(11);

/// For how long the manager may have work after the drop: the release of a grant that may be on its way is
/// resent until its ttl has passed, and a release that is on its way when the lease ends for one ttl more.
const SETTLED: Duration = Duration::from_secs(65);

/// How long a slow store takes.
const SLOW: Duration = Duration::from_millis(400);

/// The engine takes no time for what it does without waiting, but tokio's paused clock is coarse.
const AT_ONCE: Duration = Duration::from_millis(5);

/// The first pause before a request that failed is sent again.
const FIRST_RETRY: Duration = Duration::from_millis(60);

/// The longest pause before a request that failed again and again is sent once more. When the call is dropped
/// in it, the rest of the pause goes by before the release.
const LONGEST_RETRY: Duration = Duration::from_millis(1001);

/// What the calls ask the store: none of them makes a ticket.
const KINDS: [Kind; 3] = [Kind::Acquire, Kind::Extend, Kind::Release];

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
    place: Place,
}

/// The other callers of the same process that want the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Alone,
    /// The call comes behind one that is inside for a moment, and before a third one: the lock is handed over
    /// to it, and must go on to the third when it is dropped.
    InLine,
}

/// While it waits; when it was woken; when what was sent is on its way; at the instant at which the answer of
/// a slow store arrives; when the renewal is on its way.
const MOMENTS: [DropWhen; 5] = [
    DropWhen::Waiting,
    DropWhen::Woken,
    DropWhen::Later(Duration::from_millis(1)),
    DropWhen::Later(SLOW),
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
        let answer_timeout = Duration::from_millis(2500);
        match (self.answer, self.kind, self.lasting) {
            (Answer::Ok, ..) => AT_ONCE,
            (Answer::Slow, ..) => SLOW + AT_ONCE,
            // No release gets through: the lease runs out.
            (Answer::Busy | Answer::Error | Answer::Never, Kind::Release, Lasting::Always) => TTL,
            (Answer::Never | Answer::Mute, _, Lasting::Once) => answer_timeout + FIRST_RETRY,
            (Answer::Never | Answer::Mute, _, Lasting::Always) => answer_timeout + LONGEST_RETRY,
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

    /// Another caller of the process, already in line for the key.
    async fn neighbour(
        self,
        locks: &LockManager,
        inside: Duration,
    ) -> Option<JoinHandle<Result<(), LockError>>> {
        if self.place == Place::Alone {
            return None;
        }
        let locks = locks.clone();
        let options = LockOptions::new().ttl(TTL).wait(Duration::from_mins(2));
        let task = tokio::spawn(async move { locks.lock(KEY).options(&options).run(sleep(inside)).await });
        yield_now().await;
        Some(task)
    }

    async fn play(self) -> (bool, Duration) {
        let store = FaultyStore::memory();
        let (locks, other) = (store.manager(), store.other_process());
        // The engines start what they keep running.
        sleep(Duration::from_millis(1)).await;
        let base = tasks();
        let holder = if self.is_held_elsewhere() {
            Some(other.lock(KEY).ttl(TTL * 100).acquire().await.unwrap())
        } else {
            None
        };
        match (self.fault(), self.lasting) {
            (None, _) => {}
            (Some(fault), Lasting::Once) => store.next(self.kind, fault),
            (Some(fault), Lasting::Always) => store.always(self.kind, fault),
        }

        let first = self.neighbour(&locks, Duration::from_millis(50)).await;
        let inside = if first.is_some() { Duration::ZERO } else { INSIDE };
        let call = drop_after(self.call.start(&locks, TTL, inside), self.polls, self.when);
        let (ended, third) = tokio::join!(call, self.neighbour(&locks, Duration::ZERO));
        let ended = ended.is_some();
        let dropped = Instant::now();
        for neighbour in [first, third].into_iter().flatten() {
            neighbour
                .await
                .unwrap()
                .unwrap_or_else(|error| panic!("{self:?}: {error}"));
        }
        if self.place == Place::InLine {
            let limit = self.held_for_at_most() + Duration::from_millis(51);
            assert!(
                dropped.elapsed() <= limit,
                "{self:?}: {:?} until the others were through",
                dropped.elapsed()
            );
        }

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
                "{self:?}: it entered although it is gone"
            );
        }
        let limit = self.held_for_at_most();
        let is_held = async || {
            for key in KEYS {
                if store.row(key).await.is_some_and(|row| row.is_held()) {
                    return true;
                }
            }
            false
        };
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

/// The next locks are taken and released at once.
async fn is_good(locks: &LockManager, about: impl Debug) {
    let since = Instant::now();
    let guard = locks.lock(KEYS).ttl(TTL).acquire().await;
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
    let mut longest = BTreeMap::new();
    let mut cases = 0;
    for (call, kind) in CALLS.into_iter().flat_map(|call| KINDS.map(|kind| (call, kind))) {
        let lastings = [Lasting::Once, Lasting::Always].into_iter();
        for (lasting, when) in lastings.flat_map(|lasting| MOMENTS.map(|when| (lasting, when))) {
            if answer == Answer::Ok && (kind, lasting) != (KINDS[0], Lasting::Once) {
                // Without a fault they are all the same.
                continue;
            }
            let case = Case {
                call,
                kind,
                answer,
                lasting,
                when,
                polls: 0,
                place: Place::Alone,
            };
            let (polls, held) = sweep(case);
            cases += polls;
            let most: &mut Duration = longest.entry((format!("{kind:?}"), lasting)).or_default();
            *most = held.max(*most);
        }
    }
    println!("{answer:?}: {cases} cases; the row was held after the drop for at most {longest:?}");
}

/// Runs the case with 0, 1, 2, … polls, until the call comes to its end. How many there were, and how long
/// the row was held after the drop at most.
fn sweep(case: Case) -> (usize, Duration) {
    let mut longest = Duration::ZERO;
    for polls in 0.. {
        let case = Case { polls, ..case };
        assert!(polls < 100, "{case:?}: it never ends");
        let (ended, held) = case.run();
        longest = longest.max(held);
        if ended {
            assert!(polls > 1, "{case:?} was never dropped in the middle");
            return (polls + 1, longest);
        }
    }
    unreachable!();
}

/// The lock is handed over inside the process: to the call that is dropped, or past it.
#[test]
fn the_line_goes_on_without_the_call() {
    let mut cases = 0;
    let answers = [
        Answer::Ok,
        Answer::Error,
        Answer::Slow,
        Answer::Never,
        Answer::ReplyLost,
        Answer::Mute,
    ];
    for (answer, kind) in answers
        .into_iter()
        .flat_map(|answer| KINDS.map(|kind| (answer, kind)))
    {
        if answer == Answer::Ok && kind != KINDS[0] {
            continue;
        }
        for (call, when) in [Call::Attribute, Call::Guard]
            .into_iter()
            .flat_map(|call| MOMENTS.map(|when| (call, when)))
        {
            let case = Case {
                call,
                kind,
                answer,
                lasting: Lasting::Once,
                when,
                polls: 0,
                place: Place::InLine,
            };
            cases += sweep(case).0;
        }
    }
    println!("{cases} cases in line");
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
