//! The servers of a Redis Cluster, and which of them has which slot.
//!
//! A server that does not have a slot says so before it carries anything out. Only then is a request sent
//! again. If an answer is lost, the request is not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dblock_core::store::{StoreError, StoreErrorKind};
use redis::aio::PubSub;
use redis::{Cmd, FromRedisValue, Value};
use tracing::info;

use crate::acknowledge::Acknowledgement;
use crate::call::Call;
use crate::error::{self, Redirect};
use crate::login::{self, Login};
use crate::session::{Answer, Server, Way};
use crate::slots::{self, Range, slot};

/// How often a request is sent on to the server that is named instead. Two are enough unless slots are being
/// moved.
const REDIRECTS: usize = 4;

pub(crate) struct Cluster {
    login: Login,
    seeds: Vec<String>,
    acknowledgement: Option<Acknowledgement>,
    map: Mutex<Map>,
}

#[derive(Default)]
struct Map {
    servers: HashMap<String, Arc<Server>>,
    /// In the order of their ends. Empty while it is not known.
    ranges: Vec<Range>,
    /// The server that another one has named last: it is asked first who has which slot.
    named: Option<String>,
    closed: bool,
}

/// The server that a request is sent to.
struct To {
    address: String,
    /// It is only getting the slot, and answers those who say so.
    asking: bool,
}

impl To {
    fn owner(address: String) -> Self {
        Self {
            address,
            asking: false,
        }
    }
}

impl Cluster {
    pub(crate) fn new(login: Login, seeds: Vec<String>) -> Self {
        Self {
            login,
            seeds,
            acknowledgement: None,
            map: Mutex::default(),
        }
    }

    /// The same cluster, with connections of its own.
    pub(crate) fn again(&self) -> Self {
        Self {
            acknowledgement: self.acknowledgement,
            ..Self::new(self.login.clone(), self.seeds.clone())
        }
    }

    pub(crate) fn acknowledged_by(mut self, acknowledgement: Acknowledgement) -> Self {
        self.acknowledgement = Some(acknowledgement);
        self
    }

    /// Carries out a call once, on the server that has the slot of its keys.
    pub(crate) async fn run(&self, call: &Call<'_>) -> Result<Answer, StoreError> {
        let slot = slot(call.first_key());
        let mut to = To::owner(self.address_of(slot).await?);
        for _ in 0..REDIRECTS {
            let server = self.server(&to.address)?;
            let answer = if to.asking {
                server.run_asking(call).await
            } else {
                server.run(call).await
            };
            let Err(failed) = answer else { return answer };
            to = self.next(&to, failed, call.has_one_key())?;
        }
        Err(no_owner(slot))
    }

    /// Sends one command about a key.
    pub(crate) async fn ask<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, StoreError> {
        let slot = slot(key.as_bytes());
        let mut to = To::owner(self.address_of(slot).await?);
        for _ in 0..REDIRECTS {
            let server = self.server(&to.address)?;
            let answer = if to.asking {
                server.ask_asking(command).await
            } else {
                server.ask(command).await
            };
            let Err(failed) = answer else { return answer };
            to = self.next(&to, failed, true)?;
        }
        Err(no_owner(slot))
    }

    /// Where a request goes that the server `at` did not carry out. One about several keys does not go to a server
    /// that has only some of them.
    fn next(&self, at: &To, failed: StoreError, has_one_key: bool) -> Result<To, StoreError> {
        match error::redirect(&failed) {
            Some(Redirect::Moved(named)) => Ok(To::owner(self.moved(&at.address, &named))),
            Some(Redirect::Ask(named)) if has_one_key => Ok(To {
                address: login::named_by(&at.address, &named),
                asking: true,
            }),
            Some(Redirect::Ask(_) | Redirect::Split) => Err(failed),
            None => Err(self.explain(failed)),
        }
    }

    /// The address of the server that the one at `address` has named instead of itself. That one knows the
    /// slots better.
    fn moved(&self, address: &str, named: &str) -> String {
        let named = login::named_by(address, named);
        let mut map = self.map();
        map.ranges.clear();
        map.named = Some(named.clone());
        named
    }

    /// All servers that have slots.
    pub(crate) async fn primaries(&self) -> Result<Vec<(String, Arc<Server>)>, StoreError> {
        let ranges = self.ranges().await?;
        let mut addresses: Vec<_> = ranges.into_iter().map(|range| range.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
            .into_iter()
            .map(|address| {
                let server = self.server(&address)?;
                Ok((address, server))
            })
            .collect()
    }

    /// Asks anew who has which slot, if the error may mean that another server is the primary now.
    pub(crate) fn explain(&self, failed: StoreError) -> StoreError {
        if error::redirect(&failed).is_some() {
            self.forget();
            let message = format!("a slot of the Redis Cluster has moved: {failed}");
            return StoreError::new(StoreErrorKind::Unreachable, message).with_source(failed);
        }
        if failed.is_retryable() {
            self.forget();
        }
        failed
    }

    /// A connection that hears what is published anywhere in the cluster, and the address that it leads to.
    pub(crate) async fn listener(&self) -> Result<(PubSub, String), StoreError> {
        let mut failed = nobody(&self.seeds);
        for (_, server) in self.primaries().await? {
            match server.listener().await {
                Err(error) => failed = error,
                opened => return opened,
            }
        }
        self.forget();
        Err(failed)
    }

    pub(crate) fn close(&self) {
        let mut map = self.map();
        map.closed = true;
        map.servers.drain().for_each(|(_, server)| server.close());
    }

    /// Asks anew who has which slot, before the next request.
    fn forget(&self) {
        self.map().ranges.clear();
    }

    async fn address_of(&self, slot: u16) -> Result<String, StoreError> {
        let ranges = self.ranges().await?;
        let found = slots::find(&ranges, slot).map(str::to_owned);
        found.ok_or_else(|| {
            self.forget();
            StoreError::new(
                StoreErrorKind::Unreachable,
                format!(
                    "no server of the Redis Cluster has slot {slot}: `redis-cli --cluster check` says why"
                ),
            )
        })
    }

    async fn ranges(&self) -> Result<Vec<Range>, StoreError> {
        let addresses: Vec<_> = {
            let map = self.map();
            if !map.ranges.is_empty() {
                return Ok(map.ranges.clone());
            }
            let known = map.named.iter().chain(map.servers.keys());
            known.chain(&self.seeds).cloned().collect()
        };
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let mut failed = nobody(&self.seeds);
        for asked in addresses {
            let answer: Result<Value, _> = self.login.ask(&asked, &question).await;
            match answer.and_then(|answer| slots::read(answer, &asked)) {
                Ok(ranges) if ranges.is_empty() => {
                    failed = StoreError::new(
                        StoreErrorKind::Unreachable,
                        format!(
                            "{asked} knows of no server with slots: `redis-cli --cluster check` says why"
                        ),
                    );
                }
                Ok(ranges) => {
                    self.learn(&ranges);
                    return Ok(ranges);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Keeps the map, and leaves servers that have no slots any more. Their connections end with the requests
    /// that are on their way there.
    fn learn(&self, ranges: &[Range]) {
        let left: Vec<String> = {
            let mut map = self.map();
            map.ranges = ranges.to_vec();
            map.named = None;
            let is_left = |address: &str| ranges.iter().all(|range| range.address != address);
            let left = map.servers.extract_if(|address, _| is_left(address));
            left.map(|(address, _)| address).collect()
        };
        for address in left {
            info!("the server {address} of the Redis Cluster has no slots of ours any more");
        }
    }

    fn server(&self, address: &str) -> Result<Arc<Server>, StoreError> {
        let mut map = self.map();
        if map.closed {
            return Err(StoreError::new(StoreErrorKind::Other, "the lock store is closed"));
        }
        if let Some(server) = map.servers.get(address) {
            return Ok(Arc::clone(server));
        }
        let way = Way::Client(self.login.client(address)?);
        let server = Arc::new(Server::new(way, true).acknowledged_by(self.acknowledgement));
        map.servers.insert(address.to_owned(), Arc::clone(&server));
        Ok(server)
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_owner(slot: u16) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        format!(
            "the servers of the Redis Cluster do not agree on who has slot {slot}: `redis-cli --cluster check` says why"
        ),
    )
}

fn nobody(seeds: &[String]) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        format!(
            "none of these servers of the Redis Cluster can be reached: {}; are they running, and are the addresses right?",
            seeds.join(", ")
        ),
    )
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RedisStore;
    use crate::deployment::Deployment;

    #[tokio::test]
    async fn a_server_that_is_left_still_answers_who_asked_it() {
        let Some(url) = dblock_tests::redis_cluster_url() else {
            return;
        };
        let store = RedisStore::new(&url).unwrap();
        let Deployment::Cluster { cluster, .. } = &store.deployment else {
            panic!("{store:?}");
        };
        let (_, server) = cluster.primaries().await.unwrap().remove(0);
        cluster.learn(&[]);
        server.ask::<Value>(&redis::cmd("PING")).await.unwrap();
    }
}
