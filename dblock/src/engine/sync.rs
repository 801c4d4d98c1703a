//! The synchronisation types of the engine. Tests under loom replace them by loom's. `resumption` always uses
//! the standard library's: it relies on `SeqCst` loads and stores, which loom treats as weaker ones.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64},
};
#[cfg(not(all(test, loom)))]
pub(crate) use tokio::sync::Notify;

#[cfg(all(test, loom))]
pub(crate) use self::under_loom::*;

#[cfg(all(test, loom))]
mod under_loom {
    use std::ops::Deref;
    use std::sync::atomic::Ordering::{AcqRel, Relaxed};

    use loom::sync::atomic;
    use tokio::sync::futures::Notified;

    pub(crate) use loom::sync::{Mutex, MutexGuard};

    /// Most interruptions of a thread in the orders that `in_every_order` tries.
    const INTERRUPTIONS: usize = 3;

    pub(crate) fn in_every_order(test: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(INTERRUPTIONS);
        model.check(test);
    }

    pub(crate) type AtomicBool = Atomic<atomic::AtomicBool>;
    pub(crate) type AtomicU64 = Atomic<atomic::AtomicU64>;

    /// An atomic of loom, with a relaxed change of a counter before each access. Without it loom misses some
    /// orders: it forgets that one thread has loaded a value when another one loads it too, before changing
    /// it (tokio-rs/loom#166).
    #[derive(Debug)]
    pub(crate) struct Atomic<A> {
        atomic: A,
        accesses: atomic::AtomicU64,
    }

    impl<A> Atomic<A> {
        pub(crate) fn new<T>(value: T) -> Self
        where
            A: From<T>,
        {
            Self {
                atomic: A::from(value),
                accesses: atomic::AtomicU64::new(0),
            }
        }
    }

    impl<A> Deref for Atomic<A> {
        type Target = A;

        fn deref(&self) -> &A {
            self.accesses.fetch_add(1, Relaxed);
            &self.atomic
        }
    }

    /// The `Notify` of tokio. loom treats each call as one step, which orders memory as tokio's does.
    #[derive(Debug)]
    pub(crate) struct Notify {
        notify: tokio::sync::Notify,
        calls: atomic::AtomicU64,
    }

    impl Notify {
        pub(crate) fn new() -> Self {
            Self {
                notify: tokio::sync::Notify::new(),
                calls: atomic::AtomicU64::new(0),
            }
        }

        pub(crate) fn notify_one(&self) {
            self.calls.fetch_add(1, AcqRel);
            self.notify.notify_one();
        }

        pub(crate) fn notify_waiters(&self) {
            self.calls.fetch_add(1, AcqRel);
            self.notify.notify_waiters();
        }

        pub(crate) fn notified(&self) -> Notified<'_> {
            self.calls.fetch_add(1, AcqRel);
            self.notify.notified()
        }
    }
}
