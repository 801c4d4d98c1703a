//! What a caller does with the public face of dblock, one call after the other.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use dblock::{
    Key, LockBuilder, LockError, LockGuard, LockManager, LockOptions, current, current_locks,
    distributed_lock,
};
use futures_util::FutureExt as _;
use tokio::time::{sleep, timeout};

use crate::calling::Calling;
use crate::chance::{chance, ms, pick};
use crate::checks::{Call, Wait};
use crate::network::Line;
use crate::show;
use crate::visit::{How, Visit};
use crate::world::{World, tell};

/// The longest time that a caller is inside when it adopts a ticket.
const TICKET: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) world: Arc<World>,
    pub(crate) line: Arc<Line>,
    pub(crate) locks: LockManager,
}

impl Caller {
    pub(crate) async fn live(self) {
        for _ in 0..self.world.plan.calls {
            sleep(ms(0..=self.world.plan.longest_pause)).await;
            let gives_up = chance(150).then(|| ms(0..=pick(&[5, 50, 3000])));
            let works = self.call();
            let goes_on = match gives_up {
                Some(after) => timeout(after, works).await.unwrap_or_else(|_| {
                    tell!(self.world, "{}: a call is dropped", self.line);
                    true
                }),
                None => works.await,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Returns whether the manager takes more calls.
    async fn call(&self) -> bool {
        let result = if chance(100) && !self.world.checks().tickets.is_empty() {
            self.adopt().await
        } else {
            self.visit(&Visit::draw(&self.world)).await
        };
        !matches!(result, Err(LockError::Shutdown { .. }))
    }

    async fn visit(&self, visit: &Visit) -> Result<(), LockError> {
        let calling = self.world.begins(Call {
            line: Arc::clone(&self.line),
            keys: visit.keys.clone(),
            limit: visit.limit,
            wait: visit.wait,
            adopts: false,
            nested: current().is_some(),
            may_lose: visit.may_lose,
        });
        let result = match visit.how {
            How::Attribute => self.attribute(visit.keys[0].as_str(), visit, &calling).await,
            How::Run | How::Nested | How::OtherInside | How::Panics => self.run(visit, &calling).await,
            _ => self.take(visit, &calling).await,
        };
        calling.ends(&result);
        result
    }

    fn lock(&self, visit: &Visit) -> LockBuilder<'_> {
        let keys: Vec<&str> = visit.keys.iter().map(Key::as_str).collect();
        self.locks.lock(keys).options(&visit.options)
    }

    // ── Bodies ───────────────────────────────────────────────────────────────────────────────────────

    async fn run(&self, visit: &Visit, calling: &Calling<'_>) -> Result<(), LockError> {
        let ran = self.lock(visit).run(self.body(visit, calling));
        // A panic goes on after the release, and is no error of the call.
        AssertUnwindSafe(ran).catch_unwind().await.unwrap_or(Ok(()))
    }

    #[distributed_lock(key = "{key}", ttl = "2s", wait = "500ms", manager = self.locks)]
    async fn attribute(&self, key: &str, visit: &Visit, calling: &Calling<'_>) -> Result<(), LockError> {
        self.body(visit, calling).await;
        Ok(())
    }

    async fn body(&self, visit: &Visit, calling: &Calling<'_>) {
        let held = current_locks();
        let innermost = held.iter().take(visit.keys.len());
        let inside = calling.enters(innermost.map(|lock| (lock.key(), lock.fence_token())));
        let works = async {
            sleep(visit.stay).await;
            match visit.how {
                How::Nested => self.enter_again(visit).await,
                How::OtherInside => self.take_another(visit).await,
                _ => {}
            }
        };
        if visit.signals {
            let lock = current().expect("it runs under its lock");
            tokio::select! {
                biased;
                _ = lock.lost() => {}
                () = works => {}
            }
        } else {
            works.await;
        }
        drop(inside);
        if visit.how == How::Panics {
            resume_unwind(Box::new("a body panics"));
        }
    }

    /// The call chain has the lock already, so this is no call of its own for the checks.
    async fn enter_again(&self, visit: &Visit) {
        let again = visit.inner(visit.keys.clone(), Duration::from_secs(1));
        let entered = self.lock(&again).run(sleep(again.stay)).await;
        let fault = !self.world.plan.healthy || visit.may_lose || self.line.is_ending();
        if let (Err(error), false) = (entered, fault) {
            let error = show::error(&error);
            self.world
                .fail(format!("error: a nested call fails without a fault: {error}"));
        }
    }

    async fn take_another(&self, visit: &Visit) {
        let keys = &self.world.plan.keys;
        let key = keys[fastrand::usize(..keys.len())].key.clone();
        if !visit.keys.contains(&key) {
            let mut inner = visit.inner(vec![key], ms(1..=500));
            inner.options = LockOptions::new().ttl(self.world.plan.ttl);
            if let Wait::For(wait) = inner.wait {
                inner.options = inner.options.wait(wait);
            }
            inner.signals = false;
            // Judged by its own call.
            let _ = Box::pin(self.visit(&inner)).await;
        }
    }

    // ── Guards ───────────────────────────────────────────────────────────────────────────────────────

    async fn take(&self, visit: &Visit, calling: &Calling<'_>) -> Result<(), LockError> {
        let lock = self.lock(visit);
        let guard = if visit.tries {
            let Some(guard) = lock.try_acquire().await? else {
                return Ok(());
            };
            guard
        } else {
            lock.acquire().await?
        };
        self.hold(guard, visit.how, visit.stay, calling).await
    }

    async fn hold(
        &self,
        guard: LockGuard,
        how: How,
        stay: Duration,
        calling: &Calling<'_>,
    ) -> Result<(), LockError> {
        let inside = calling.enters(guard.fence_tokens());
        let works = async {
            sleep(stay).await;
            match how {
                How::Extended => guard.extend(self.world.plan.ttl * 2).await?,
                How::Pinned => guard.pin().await?,
                _ => return Ok(()),
            }
            sleep(stay).await;
            Ok(())
        };
        let worked = tokio::select! {
            biased;
            lost = guard.lost() => Err(lost),
            worked = works => worked,
        };
        if how == How::Ticket {
            calling.gives_ticket(TICKET, guard.remaining());
        }
        drop(inside);
        worked?;
        match how {
            How::Dropped => drop(guard),
            How::Ticket => {
                let ticket = guard.into_ticket(TICKET).await?;
                calling.has_given(ticket);
            }
            _ => guard.release().await?,
        }
        Ok(())
    }

    async fn adopt(&self) -> Result<(), LockError> {
        let (ticket, key) = {
            let tickets = &mut self.world.checks().tickets;
            let (ticket, key) = tickets.swap_remove(fastrand::usize(..tickets.len()));
            // Somebody else may come with the same ticket.
            if chance(250) {
                tickets.push((ticket.clone(), key.clone()));
            }
            (ticket, key)
        };
        let calling = self.world.begins(Call {
            line: Arc::clone(&self.line),
            keys: vec![key],
            limit: None,
            wait: Wait::For(TICKET),
            adopts: true,
            nested: false,
            may_lose: false,
        });
        let stay = ms(0..=self.world.plan.longest_stay);
        let result = async {
            let guard = self.locks.adopt(&ticket).await?;
            self.hold(
                guard,
                pick(&[How::Released, How::Dropped, How::Ticket]),
                stay,
                &calling,
            )
            .await
        };
        let result = result.await;
        calling.ends(&result);
        result
    }
}
