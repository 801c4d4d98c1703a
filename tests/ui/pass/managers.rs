use std::sync::{Arc, Mutex, OnceLock};

use dblock::{LockManager, distributed_lock};
use dblock_ui_tests::{OrderError, send};

static LOCKS: OnceLock<LockManager> = OnceLock::new();

fn global() -> LockManager {
    LOCKS.get().expect("set when the program starts").clone()
}

#[distributed_lock(key = "a", manager = locks)]
pub async fn by_value(locks: LockManager) -> Result<LockManager, OrderError> {
    Ok(locks)
}

#[distributed_lock(key = "a", manager = locks)]
pub async fn by_reference(locks: &LockManager) -> Result<&LockManager, OrderError> {
    Ok(locks)
}

#[distributed_lock(key = "a", manager = locks)]
pub async fn by_arc(locks: Arc<LockManager>) -> Result<Arc<LockManager>, OrderError> {
    Ok(locks)
}

#[distributed_lock(key = "a", manager = &locks)]
#[allow(clippy::borrowed_box)]
pub async fn by_explicit_reference(locks: &Box<LockManager>) -> Result<(), OrderError> {
    let _ = locks;
    Ok(())
}

#[distributed_lock(key = "a", manager = global())]
pub async fn by_call() -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = "a", manager = locks.lock().expect("not poisoned"))]
pub async fn by_guard(locks: &Mutex<LockManager>) -> Result<(), OrderError> {
    Ok(())
}

pub fn is_send(locks: &Mutex<LockManager>) {
    drop(send(by_guard(locks)));
}

pub struct Service {
    shared: Arc<LockManager>,
    own: LockManager,
}

impl Service {
    fn shared(&self) -> Result<Arc<LockManager>, OrderError> {
        Ok(Arc::clone(&self.shared))
    }

    #[distributed_lock(key = "a", manager = self.shared()?)]
    pub async fn by_question_mark(&self) -> Result<(), OrderError> {
        Ok(())
    }

    #[distributed_lock(key = "a", manager = if first { &self.shared } else { &self.own })]
    pub async fn by_if(&self, first: bool) -> Result<(), OrderError> {
        Ok(())
    }

    #[distributed_lock(key = "a", manager = match first { true => self.shared.clone(), false => Arc::new(self.own.clone()) })]
    pub async fn by_match(&self, first: bool) -> Result<(), OrderError> {
        Ok(())
    }

    #[distributed_lock(key = "a", manager = { let shared = &self.shared; shared.clone() })]
    pub async fn by_block(&self) -> Result<(), OrderError> {
        Ok(())
    }

    #[distributed_lock(key = "a", manager = self.shared().unwrap_or_else(|_| unreachable!()))]
    pub async fn by_closure(&self) -> Result<(), OrderError> {
        Ok(())
    }
}
