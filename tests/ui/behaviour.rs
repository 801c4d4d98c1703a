//! A function under the attribute behaves as the bare one: drops, panics and size.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use dblock::{LockManager, distributed_lock, run_once};
use dblock_ui_tests::OrderError;
use tokio::task::yield_now;

/// Where the locks of these tests are.
fn locks() -> LockManager {
    let store = dblock::store::MemoryStore::new();
    LockManager::builder(store)
        .build_lazy()
        .expect("inside a runtime")
}

/// The events, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn write(&self, event: &'static str) {
        self.0.lock().expect("not poisoned").push(event);
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().expect("not poisoned"))
    }

    fn loud(&self, name: &'static str) -> Loud {
        Loud {
            name,
            log: self.clone(),
            number: 1,
        }
    }
}

/// Tells when it is dropped.
struct Loud {
    name: &'static str,
    log: Log,
    number: u64,
}

impl Drop for Loud {
    fn drop(&mut self) {
        self.log.write(self.name);
    }
}

/// Two of them, so that a body can use one alone.
struct Pair {
    left: Loud,
    right: Loud,
}

impl Pair {
    fn new(log: &Log, left: &'static str, right: &'static str) -> Self {
        Self {
            left: log.loud(left),
            right: log.loud(right),
        }
    }
}

/// How a body ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Value,
    Return,
    QuestionMark,
    Panic,
}

/// The same functions bare and under the lock.
macro_rules! functions {
    ($name:ident $(, #[$lock:meta])*) => {
        mod $name {
            use super::*;

            $(#[$lock])*
            pub(super) async fn drops(
                first: Loud,
                second: Pair,
                (third, mut fourth): (Loud, Loud),
                end: End,
                log: Log,
            ) -> Result<u64, OrderError> {
                log.write("body");
                let local = log.loud("local");
                // Named in another order than declared, and of `second` one field alone.
                fourth.number += 1;
                let sum = second.right.number + fourth.number + first.number + local.number;
                yield_now().await;
                let inner = log.loud("inner");
                match end {
                    End::Value => drop(third),
                    End::Return => return Ok(sum + inner.number),
                    End::QuestionMark => Err(OrderError::Unknown(third.number))?,
                    End::Panic => panic!("on purpose"),
                }
                Ok(log.loud("temporary").number + sum)
            }
        }
    };
}

functions!(bare);
functions!(locked, #[distributed_lock(key = "drops:{first.number}:{second.left.number}", manager = locks())]);

macro_rules! drops_of {
    ($name:ident, $end:expr) => {{
        let log = Log::default();
        let arguments = (
            log.loud("first"),
            Pair::new(&log, "left", "right"),
            (log.loud("third"), log.loud("fourth")),
        );
        let future = $name::drops(arguments.0, arguments.1, arguments.2, $end, log.clone());
        let ended = tokio::spawn(future).await;
        assert_eq!(ended.is_err(), $end == End::Panic);
        log.take()
    }};
}

#[tokio::test]
async fn everything_is_dropped_in_the_same_order() {
    for end in [End::Value, End::Return, End::QuestionMark, End::Panic] {
        let bare = drops_of!(bare, end);
        assert_eq!(bare.len(), if end == End::Value { 9 } else { 8 }, "{bare:?}");
        assert_eq!(drops_of!(locked, end), bare);
    }
}

/// Drops a future: before its first poll, or after the poll in which its body begins.
async fn abandoned(future: impl Future, begin: bool, log: &Log) -> Vec<&'static str> {
    {
        let mut future = pin!(future);
        while begin && log.0.lock().expect("not poisoned").first() != Some(&"body") {
            let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
            assert!(!polled, "the body awaits once it has begun");
            // The store answers on this runtime.
            yield_now().await;
        }
    }
    log.take()
}

macro_rules! abandoned {
    ($name:ident, $begin:expr) => {{
        let log = Log::default();
        let arguments = (
            log.loud("first"),
            Pair::new(&log, "left", "right"),
            (log.loud("third"), log.loud("fourth")),
        );
        let future = $name::drops(arguments.0, arguments.1, arguments.2, End::Value, log.clone());
        abandoned(future, $begin, &log).await
    }};
}

#[tokio::test]
async fn a_dropped_future_drops_its_arguments_in_the_same_order() {
    let begun = abandoned!(bare, true);
    assert_eq!(begun.first(), Some(&"body"), "{begun:?}");
    assert_eq!(abandoned!(locked, true), begun);
    assert_eq!(abandoned!(locked, false), abandoned!(bare, false));
}

/// The one difference: an argument that the body never names is not part of the body, so it is dropped after
/// the release.
#[tokio::test]
async fn an_unused_argument_is_dropped_last() {
    async fn bare(used: Loud, _unused: Loud) -> Result<u64, OrderError> {
        yield_now().await;
        Ok(used.number)
    }
    #[distributed_lock(key = "unused", manager = locks())]
    async fn locked(used: Loud, _unused: Loud) -> Result<u64, OrderError> {
        yield_now().await;
        Ok(used.number)
    }
    let log = Log::default();
    bare(log.loud("used"), log.loud("unused")).await.expect("no lock");
    assert_eq!(log.take(), ["unused", "used"]);
    locked(log.loud("used"), log.loud("unused"))
        .await
        .expect("the lock is free");
    assert_eq!(log.take(), ["used", "unused"]);
}

/// The compiler has carried `cfg_attr` out before it expands the attribute above.
#[tokio::test]
async fn the_topmost_attribute_is_the_outermost() {
    #[distributed_lock(key = "outer", manager = locks())]
    #[cfg_attr(all(), distributed_lock(key = "middle", manager = locks()))]
    #[dblock::distributed_lock(key = "inner", manager = locks())]
    async fn nested() -> Result<Vec<String>, OrderError> {
        let locks = dblock::current_locks();
        Ok(locks.iter().map(|lock| lock.key().to_owned()).collect())
    }
    assert_eq!(nested().await.expect("free"), ["inner", "middle", "outer"]);
}

#[tokio::test]
async fn a_panic_shows_the_users_line() {
    #[distributed_lock(key = "panics", manager = locks())]
    async fn panics() -> Result<(), OrderError> {
        yield_now().await;
        panic!("here")
    }
    let line = line!() - 2;
    let seen = Arc::new(Mutex::new(None));
    let hook_seen = Arc::clone(&seen);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() == Some(&"here") {
            let location = panic.location().expect("a location");
            *hook_seen.lock().expect("not poisoned") = Some((location.file().to_owned(), location.line()));
        } else {
            before(panic);
        }
    }));
    assert!(tokio::spawn(panics()).await.is_err());
    let seen = seen.lock().expect("not poisoned").clone();
    assert_eq!(seen, Some((file!().to_owned(), line)));
}

/// A bare future has its arguments twice, as given and as used. Under the lock it has them once more, in the
/// block that is the body, and what the lock itself needs.
#[tokio::test]
async fn futures_grow_by_the_lock_and_a_copy_of_the_arguments() {
    async fn bare<const N: usize>(data: [u8; N]) -> Result<u8, OrderError> {
        yield_now().await;
        Ok(data[0])
    }
    #[distributed_lock(key = "size", manager = locks())]
    async fn locked<const N: usize>(data: [u8; N]) -> Result<u8, OrderError> {
        yield_now().await;
        Ok(data[0])
    }
    let small = (size_of_val(&bare([0; 8])), size_of_val(&locked([0; 8])));
    let large = (size_of_val(&bare([0; 1024])), size_of_val(&locked([0; 1024])));
    println!("bytes bare and under the lock: {small:?} with 8 bytes of arguments, {large:?} with 1024");
    let growth = |(bare, locked): (usize, usize)| locked - bare;
    // Of that the span of the acquire is some 40 bytes.
    assert!(growth(small) <= 968, "{small:?}");
    assert!(growth(large) - growth(small) <= 1024 + 64, "{small:?} {large:?}");
}

/// The body of a run is in a box, so it is nowhere twice, and what is around it has one size.
#[tokio::test]
async fn a_run_does_not_grow_with_its_body() {
    macro_rules! body {
        ($(#[$run:meta])* $name:ident) => {
            $(#[$run])*
            async fn $name<const N: usize>() -> Result<u8, OrderError> {
                let data = std::hint::black_box([0; N]);
                yield_now().await;
                Ok(data[0])
            }
        };
    }
    body!(bare);
    body!(
        #[run_once(key = "size", remember = "1h", on_crash = "retry", manager = locks())]
        run
    );
    let bodies = (size_of_val(&bare::<8>()), size_of_val(&bare::<60_000>()));
    let runs = (size_of_val(&run::<8>()), size_of_val(&run::<60_000>()));
    println!("bytes bare and as a run: {bodies:?}, {runs:?}");
    assert!(bodies.1 > 60_000 && runs.0 == runs.1, "{bodies:?} {runs:?}");
    assert!(runs.0 <= 4_100, "{runs:?}");
    assert_eq!(run::<60_000>().await.expect("it runs"), 0);
}
