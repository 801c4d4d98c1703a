//! The atomics of the machine. Tests under loom (`--cfg dblock_loom`) replace them by loom's.

#[cfg(not(dblock_loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU64};

#[cfg(dblock_loom)]
pub use self::under_loom::*;

#[cfg(dblock_loom)]
mod under_loom {
    use std::ops::Deref;
    use std::sync::atomic::Ordering::Relaxed;

    use loom::sync::atomic;

    /// How often a thread is interrupted at most, in the orders that `in_every_order` tries.
    const INTERRUPTIONS: usize = 3;

    pub fn in_every_order(test: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(INTERRUPTIONS);
        model.check(test);
    }

    pub type AtomicBool = Atomic<atomic::AtomicBool>;
    pub type AtomicU64 = Atomic<atomic::AtomicU64>;

    /// An atomic of loom, with a relaxed change of a counter before each access. Without it loom misses some
    /// orders: it forgets that one thread has loaded a value when another one loads it too, before changing
    /// it (tokio-rs/loom#166).
    #[derive(Debug)]
    pub struct Atomic<A> {
        atomic: A,
        accesses: atomic::AtomicU64,
    }

    impl<A> Atomic<A> {
        pub fn new<T>(value: T) -> Self
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
}
