//! Calls that block their thread, for programs and threads without async code.

use std::future::Future;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::LockManager;

/// A runtime on a thread of its own, which ends when this is dropped. It drives timers and connections also while no call
/// blocks.
pub(crate) struct Runtime {
    handle: Handle,
    _until_dropped: oneshot::Sender<()>,
}

impl Runtime {
    /// # Panics
    /// The operating system gives no thread.
    pub(crate) fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime for calls that block");
        let handle = runtime.handle().clone();
        let (until_dropped, dropped) = oneshot::channel::<()>();
        let run = move || {
            let _ = runtime.block_on(dropped);
        };
        let thread = thread::Builder::new().name("dblock-blocking".into()).spawn(run);
        thread.expect("a thread for calls that block");
        Self {
            handle,
            _until_dropped: until_dropped,
        }
    }
}

/// For code that is not async.
impl LockManager {
    /// Blocks this thread until a future of this library is done. It runs on the tokio runtime that the thread is in, as
    /// in `spawn_blocking`. So every call works without a runtime, too: then a thread that the first call starts drives
    /// timers and connections. It ends with the manager, and with it whatever such a future has spawned.
    ///
    /// A program without a runtime makes its manager with
    /// [`build_lazy`](crate::LockManagerBuilder::build_lazy), and creates the tables by
    /// `locks.block_on(locks.admin().migrate())` if they may be missing. For a lock around code there is
    /// [`LockBuilder::blocking_run`](crate::LockBuilder::blocking_run), and the attribute on a plain `fn`.
    ///
    /// A manager of the memory store that was made in a runtime needs that runtime: while nothing drives it, calls that
    /// wait hang.
    ///
    /// # Panics
    /// In an async task, and in another `block_on` of tokio: they have other tasks to run. Use `.await` there, or
    /// `tokio::task::spawn_blocking`. And when the operating system gives no thread.
    ///
    /// ```no_run
    /// use dblock::LockManager;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::builder_for_url("postgres://app@db/app")?.build_lazy()?;
    /// locks.block_on(locks.admin().migrate())?;
    /// let guard = locks.block_on(locks.lock("order:42").acquire())?;
    /// assert_eq!(guard.key(), "order:42");
    /// locks.block_on(guard.release())?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match Handle::try_current() {
            Ok(handle) => handle.block_on(future),
            Err(_) => self.runtime().handle.block_on(future),
        }
    }
}
