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
    /// Blocks this thread until the future is done: for all calls of this library that are async. In a thread of a tokio
    /// runtime, as in `spawn_blocking`, that runtime drives the future's timers and connections. Elsewhere the first call
    /// starts a thread for that, beside the manager's own. The thread ends with the last clone of the manager, and with it
    /// the tasks that such futures have spawned.
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
