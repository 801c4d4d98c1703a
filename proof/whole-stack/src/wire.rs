//! The store of a process: a connection to the server, over the network.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dblock::store::{Capabilities, Purged, Request, Store, StoreError, StoreErrorKind, StoreFuture, WakeUp};
use dblock::{InspectFilter, Key, LockRow};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::message::error;
use crate::network::{Answers, Line};
use crate::world::{World, tell};

/// A store gives up a connection to listen on that it cannot open.
const CONNECTS: Duration = Duration::from_secs(5);

pub(crate) struct Wire {
    world: Arc<World>,
    line: Arc<Line>,
}

impl Wire {
    pub(crate) fn new(world: Arc<World>, line: Arc<Line>) -> Self {
        Self { world, line }
    }

    /// Opens a connection on which the wake-ups come.
    async fn connect(&self) -> Result<mpsc::UnboundedReceiver<WakeUp>, StoreError> {
        self.world.reach(&self.line).await?;
        if self.world.network().is_deaf(&self.line) {
            return Err(error(StoreErrorKind::Unsupported));
        }
        let told = self.world.listens(&self.line);
        self.world.reach(&self.line).await?;
        Ok(told)
    }

    /// Asks the server what needs no batch.
    async fn ask<T>(&self, asks: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.world.reach(&self.line).await?;
        let answer = asks.await;
        self.world.reach(&self.line).await?;
        answer
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire of {}", self.line)
    }
}

impl Store for Wire {
    fn capabilities(&self) -> Capabilities {
        let plan = &self.world.plan;
        let mut can = self.world.server.rows.capabilities();
        can.immediate = false;
        can.concurrency = plan.concurrency;
        can.parts = plan.parts;
        can.wake_ups = plan.wake_ups;
        can
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Answers> {
        Box::pin(self.world.send(&self.line, requests))
    }

    fn listen<'a>(&'a self, tell: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        Box::pin(async move {
            let broken = self.line.broken();
            let talks = async {
                let mut told = timeout(CONNECTS, self.connect())
                    .await
                    .unwrap_or_else(|_| Err(error(StoreErrorKind::Unreachable)))?;
                tell!(self.world, "{} listens", self.line);
                tell(WakeUp::Listening);
                while let Some(wake_up) = told.recv().await {
                    tell!(
                        self.world,
                        "{} hears that {}",
                        self.line,
                        self.world.wake_up(&wake_up)
                    );
                    tell(wake_up);
                }
                Ok(())
            };
            tokio::select! {
                biased;
                () = broken => error(StoreErrorKind::Interrupted),
                ended = talks => ended.err().unwrap_or_else(|| error(StoreErrorKind::Interrupted)),
            }
        })
    }

    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(self.ask(self.world.server.rows.check_schema()))
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(self.ask(self.world.server.rows.migrate()))
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(self.ask(self.world.server.rows.inspect(filter)))
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.ask(self.world.server.rows.revoke(key)))
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.ask(self.world.server.rows.force_release(key)))
    }

    fn purge<'a>(
        &'a self,
        idle: Duration,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        Box::pin(self.ask(self.world.server.rows.purge(idle, after, limit)))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { tell!(self.world, "{} closes", self.line) })
    }

    fn part_of(&self, key: &Key) -> usize {
        let last = key.as_str().bytes().last().map_or(0, usize::from);
        last % self.world.plan.parts
    }
}
