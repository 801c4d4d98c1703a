//! Callers and the driver on one key, in every order of their steps on what they share. The clock stands
//! still.

use std::pin::Pin;

use dblock_core::machine::dispatch::MAX_BATCH;
use dblock_core::machine::key::Transmit;
use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, MaybeDone, maybe_done};
use loom::thread;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::*;
use crate::LockOptions;
use crate::engine::cells::Resumption;
use crate::engine::driver::Driver;
use crate::engine::sync::in_every_order;
use crate::engine::{Call, EngineHandle, Hold, Unconfirmed};
use crate::store::MemoryStore;
use crate::{Key, LockError};

/// A caller that takes the lock and releases it at once.
type Caller = MaybeDone<LocalBoxFuture<'static, Left>>;

/// The result of the acquire, and then of the release.
type Left = Result<Result<(), Unconfirmed>, LockError>;

/// An engine whose driver is the test.
struct Engine {
    shared: Arc<Shared>,
    handle: EngineHandle,
    key: Key,
    /// An owner holds the lock.
    inside: Arc<AtomicBool>,
}

/// `immediate`: the store answers at once, so callers need no driver.
fn check(immediate: bool, test: impl Fn(Engine) + Send + Sync + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let _inside = runtime.enter();
    in_every_order(move || test(Engine::new(immediate)));
}

fn seconds(seconds: u64) -> Time {
    Time::from_nanos(0) + Duration::from_secs(seconds)
}

impl Engine {
    fn new(immediate: bool) -> Self {
        let (commands, _) = mpsc::unbounded_channel();
        let settings = Settings {
            hand_over: true,
            purge_after: None,
        };
        let store = Arc::new(MemoryStore::new());
        let mut shared = Shared::new(1, store, settings, Arc::default());
        shared.immediate = immediate;
        let shared = Arc::new(shared);
        Self {
            handle: EngineHandle::new(Arc::clone(&shared), commands),
            shared,
            key: Key::new(None, "k").unwrap(),
            inside: Arc::new(AtomicBool::new(false)),
        }
    }

    /// The engine ends when it is dropped.
    fn driver(&self) -> Driver {
        let (_, inbox) = mpsc::unbounded_channel();
        Driver::new(Arc::clone(&self.shared), inbox)
    }

    fn call(&self, wait: u64) -> Arc<Call> {
        let options = LockOptions::new().wait(Duration::from_secs(wait));
        Arc::new(Call {
            owner: Uuid::now_v7(),
            holder: "h".into(),
            since: self.handle.now(),
            deadline: EngineHandle::deadline(self.handle.now(), options.wait),
            options,
            nested: false,
            takes: dblock_core::machine::call::Takes::No,
            begin: None,
            tells_wait: None,
        })
    }

    /// Takes the lock within `wait` seconds, and releases it. Does nothing until it is polled.
    fn caller(&self, wait: u64) -> Caller {
        let call = self.call(wait);
        let (shared, handle) = (Arc::clone(&self.shared), self.handle.clone());
        let (key, inside) = (self.key.clone(), Arc::clone(&self.inside));
        let call_and_leave = async move {
            let hold = handle.acquire(&key, call).await?;
            assert!(!inside.swap(true, Ordering::AcqRel), "two are inside");
            assert!(
                shared.cells.find(&key).is_some(),
                "a key that is held is forgotten"
            );
            inside.store(false, Ordering::Release);
            let unconfirmed = Hold::leave(vec![hold], shared.clock.now() + Duration::from_secs(3), true)
                .await
                .pop();
            Ok(unconfirmed.map_or(Ok(()), |(_, why)| Err(why)))
        };
        maybe_done(call_and_leave.boxed_local())
    }

    /// Whether the driver would look again without going to sleep.
    fn is_woken(&self) -> bool {
        self.shared.wake.notified().now_or_never().is_some()
    }

    /// When the driver looks next.
    fn next_look(&self) -> Option<Time> {
        self.shared.schedule().next_look()
    }

    /// Does what the driver does at `now` with a key that is due.
    fn look_at_due(&self, now: Time) {
        let due = self.shared.schedule().pop_due(now);
        if let Some(cell) = due {
            self.shared.step(&cell, Machine::handle_timeout);
        }
    }

    /// Does what the driver does with what is ready. Returns whether there was something.
    fn drive(&self) -> bool {
        let now = self.shared.clock.now();
        let (lane, cells, kinds) = {
            let mut schedule = self.shared.schedule();
            let Some(lane) = schedule.dispatch.next_lane(now, false) else {
                return false;
            };
            let (cells, kinds) = schedule.dispatch.take(lane, now);
            (lane, cells, kinds)
        };
        let resumption = Resumption::new(&self.shared.wake);
        for cell in cells {
            if let Some(Transmit { request, .. }) = self.shared.transmit(&cell, kinds) {
                let answers = self.shared.store.apply(&[request]).now_or_never();
                let answer = answers.unwrap().pop().unwrap();
                self.shared.answer(&cell, answer, MAX_BATCH, &resumption);
            }
        }
        self.shared.schedule().dispatch.answered(lane);
        true
    }
}

/// Runs the caller until it has to wait.
fn go_on(caller: &mut Caller) {
    let _ = caller.now_or_never();
}

fn answer(caller: &mut Caller) -> Left {
    Pin::new(caller).take_output().expect("the caller has its answer")
}

fn go_on_beside(mut caller: Caller) -> thread::JoinHandle<Caller> {
    thread::spawn(move || {
        go_on(&mut caller);
        caller
    })
}

#[test]
fn callers_enter_one_after_the_other_and_leave_nothing_behind() {
    check(true, |engine| {
        let beside = go_on_beside(engine.caller(5));
        let mut one = engine.caller(5);
        go_on(&mut one);
        let mut other = beside.join().unwrap();
        for _ in 0..2 {
            go_on(&mut one);
            go_on(&mut other);
        }
        for mut caller in [one, other] {
            answer(&mut caller).unwrap().unwrap();
        }
        assert!(engine.shared.cells.find(&engine.key).is_none(), "the key is idle");
        assert_eq!(engine.shared.counts.busy.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_caller_that_goes_away_takes_no_lock_along() {
    check(true, |engine| {
        let hold = engine.handle.acquire(&engine.key, engine.call(5)).now_or_never();
        let hold = hold.unwrap().unwrap();
        let mut waits = engine.caller(5);
        go_on(&mut waits);
        let gone = thread::spawn(move || drop(waits));
        let mut leaves =
            Hold::leave(vec![hold], engine.handle.now() + Duration::from_secs(3), true).boxed_local();
        let left = (&mut leaves).now_or_never();
        gone.join().unwrap();
        let unconfirmed = left.or_else(|| leaves.now_or_never());
        assert!(unconfirmed.expect("it was answered").is_empty());
        assert!(engine.shared.cells.find(&engine.key).is_none(), "the key is idle");
    });
}

#[test]
fn no_request_is_forgotten() {
    check(false, |engine| {
        let mut one = engine.caller(5);
        go_on(&mut one);
        let beside = go_on_beside(engine.caller(5));
        engine.drive();
        go_on(&mut one);
        let mut other = beside.join().unwrap();
        while {
            go_on(&mut one);
            go_on(&mut other);
            engine.drive()
        } {}
        for mut caller in [one, other] {
            answer(&mut caller).unwrap().unwrap();
        }
        assert!(engine.shared.cells.find(&engine.key).is_none(), "the key is idle");
    });
}

#[test]
fn a_request_wakes_the_driver() {
    check(false, |engine| {
        // So that the caller's look does not wake the driver.
        engine.shared.schedule().next_look = Some(seconds(1));
        let beside = go_on_beside(engine.caller(5));
        let sleeps = !engine.drive();
        let _waits = beside.join().unwrap();
        assert!(!sleeps || engine.is_woken());
    });
}

#[test]
fn a_look_before_the_driver_s_next_wakes_it() {
    check(false, |engine| {
        let mut waits = engine.caller(10);
        go_on(&mut waits);
        assert!(engine.is_woken());
        // A look whose time has passed.
        engine.shared.schedule().next_look = Some(seconds(1));
        let beside = go_on_beside(engine.caller(5));
        let next_look = engine.next_look();
        let _waits = beside.join().unwrap();
        assert!(next_look == Some(seconds(5)) || engine.is_woken());
    });
}

#[test]
fn the_earlier_of_two_looks_stands() {
    check(false, |engine| {
        let beside = go_on_beside(engine.caller(5));
        let mut waits = engine.caller(10);
        go_on(&mut waits);
        let _waits = beside.join().unwrap();
        assert_eq!(engine.next_look(), Some(seconds(5)));
    });
}

#[test]
fn a_look_stands_while_the_driver_puts_a_later_one_off() {
    check(false, |engine| {
        let mut waits = engine.caller(10);
        go_on(&mut waits);
        let beside = go_on_beside(engine.caller(5));
        engine.look_at_due(seconds(10));
        let _waits = beside.join().unwrap();
        assert_eq!(engine.next_look(), Some(seconds(5)));
    });
}

#[test]
fn a_look_stands_while_an_earlier_one_goes() {
    check(false, |engine| {
        let mut waits = engine.caller(5);
        go_on(&mut waits);
        let beside = go_on_beside(engine.caller(10));
        drop(waits);
        engine.look_at_due(seconds(5));
        let _waits = beside.join().unwrap();
        assert!(engine.next_look().is_some_and(|at| at <= seconds(10)));
    });
}

#[test]
fn whoever_comes_while_the_engine_stops_is_refused() {
    check(false, |engine| {
        let beside = go_on_beside(engine.caller(5));
        engine.shared.stopped.store(true, Ordering::Release);
        engine.shared.each(Machine::stop);
        let mut caller = beside.join().unwrap();
        go_on(&mut caller);
        assert!(matches!(answer(&mut caller), Err(LockError::Shutdown { .. })));
    });
}

#[test]
fn whoever_comes_while_the_engine_ends_is_refused() {
    check(false, |engine| {
        let driver = engine.driver();
        let beside = go_on_beside(engine.caller(5));
        drop(driver);
        let mut caller = beside.join().unwrap();
        go_on(&mut caller);
        assert!(matches!(answer(&mut caller), Err(LockError::Shutdown { .. })));
    });
}

#[test]
fn whoever_leaves_while_the_engine_ends_is_answered() {
    check(false, |engine| {
        let driver = engine.driver();
        let mut caller = engine.caller(5);
        go_on(&mut caller);
        engine.drive();
        let beside = go_on_beside(caller);
        drop(driver);
        let mut caller = beside.join().unwrap();
        go_on(&mut caller);
        assert!(answer(&mut caller).is_ok_and(|left| left.is_err()));
    });
}

#[test]
fn the_last_one_to_leave_wakes_a_driver_that_stops() {
    check(true, |engine| {
        let hold = engine.handle.acquire(&engine.key, engine.call(5)).now_or_never();
        let hold = hold.unwrap().unwrap();
        assert!(engine.is_woken());
        let beside = thread::spawn(move || drop(hold));
        engine.shared.stopping.store(true, Ordering::Release);
        engine.shared.each(Machine::refuse_outermost);
        let sleeps = engine.shared.counts.need_grace.load(Ordering::Acquire) > 0;
        beside.join().unwrap();
        assert!(!sleeps || engine.is_woken());
    });
}
