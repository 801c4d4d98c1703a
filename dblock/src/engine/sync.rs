//! The synchronisation types of the engine. Tests under loom replace them by loom's. `resumption` always uses
//! the standard library's: it relies on `SeqCst` loads and stores, which loom treats as weaker ones.

pub(crate) use dblock_core::sync::{AtomicBool, AtomicU64};
#[cfg(not(all(test, dblock_loom)))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(all(test, dblock_loom)))]
pub(crate) use tokio::sync::Notify;

#[cfg(all(test, dblock_loom))]
pub(crate) use self::under_loom::*;

#[cfg(all(test, dblock_loom))]
mod under_loom {
    use std::sync::atomic::Ordering::AcqRel;

    use loom::sync::atomic::AtomicU64;
    use tokio::sync::futures::Notified;

    pub(crate) use dblock_core::sync::in_every_order;
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    /// The `Notify` of tokio. loom treats each call as one step, which orders memory as tokio's does.
    #[derive(Debug)]
    pub(crate) struct Notify {
        notify: tokio::sync::Notify,
        calls: AtomicU64,
    }

    impl Notify {
        pub(crate) fn new() -> Self {
            Self {
                notify: tokio::sync::Notify::new(),
                calls: AtomicU64::new(0),
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
