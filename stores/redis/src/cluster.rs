//! The servers of a Redis Cluster, and which of them has which slot.
//!
//! A server that does not have a slot says so before it carries anything out. Only then is a request sent
//! again. If an answer is lost, the request is not.
//!
//! A request that failed leaves its server in *doubt*, until the server carries one out. Who has the slots of such
//! a server is asked anew, of other servers first. Requests to servers that are not in doubt wait for nothing of
//! that.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dblock_core::store::events::{self, Event};
use dblock_core::store::{StoreError, StoreErrorKind};
use futures_util::future::join_all;
use redis::aio::PubSub;
use redis::{Cmd, FromRedisValue, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::{debug, info};

use crate::NAME;
use crate::acknowledge::Acknowledgement;
use crate::call::Call;
use crate::error::{self, Redirect};
use crate::login::{self, Clients, Login};
use crate::session::{Answer, Server, Way};
use crate::slots::{self, Range, slot};

/// How often a request is sent on to the server that is named instead. Two are enough unless slots are being
/// moved.
const REDIRECTS: usize = 4;

/// How many servers are asked at once who has which slot. One may be cut off, and know no better.
const ASKED: usize = 5;

/// How often they are asked while one is listened to.
const ASK_EVERY: Duration = Duration::from_secs(30);

pub(crate) struct Cluster {
    login: Login,
    seeds: Vec<String>,
    acknowledgement: Option<Acknowledgement>,
    map: Mutex<Map>,
    /// When the servers were last asked who has which slot, and what came of it. Held while they are asked, so that
    /// requests that come meanwhile share the answer.
    asked: tokio::sync::Mutex<Option<(Instant, Result<(), StoreError>)>>,
    /// Told when servers were left.
    left: Notify,
}

#[derive(Default)]
struct Map {
    servers: HashMap<String, Arc<Server>>,
    /// In the order of the slots. Empty while it is not known.
    ranges: Vec<Range>,
    /// The servers in doubt, and since when.
    doubted: HashMap<String, Instant>,
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

/// A request on its way. Without an answer its server is in doubt, also when nobody waits any longer.
struct Sent<'a> {
    cluster: &'a Cluster,
    address: &'a str,
    answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let mut map = self.cluster.map();
        if self.answered {
            map.doubted.remove(self.address);
            let own = map
                .ranges
                .iter_mut()
                .filter(|range| range.address == self.address);
            own.for_each(|range| range.is_sure = true);
        } else {
            map.doubted.insert(self.address.to_owned(), Instant::now());
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
            asked: tokio::sync::Mutex::default(),
            left: Notify::new(),
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

    /// The same, by clients that are made in this way.
    pub(crate) fn made_by(self, clients: Clients) -> Self {
        Self {
            login: self.login.made_by(clients),
            ..self
        }
    }

    /// Carries out a call once, on the server that has the slot of its keys.
    pub(crate) async fn run(&self, call: &Call<'_>) -> Result<Answer, StoreError> {
        let carry_out = |server: Arc<Server>, asking| async move {
            if asking {
                server.run_asking(call).await
            } else {
                server.run(call).await
            }
        };
        self.send(call.first_key(), call.has_one_key(), carry_out).await
    }

    /// Sends one command about a key.
    pub(crate) async fn ask<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, StoreError> {
        let carry_out = |server: Arc<Server>, asking| async move {
            if asking {
                server.ask_asking(command).await
            } else {
                server.ask(command).await
            }
        };
        self.send(key.as_bytes(), true, carry_out).await
    }

    /// Sends a request to the server that has the slot of a key, and on to the one that this server names instead. A
    /// request about several keys does not go to a server that has only some of them.
    async fn send<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        key: &[u8],
        is_only_key: bool,
        carry_out: impl Fn(Arc<Server>, bool) -> F,
    ) -> Result<T, StoreError> {
        let slot = slot(key);
        let mut to = To::owner(self.address_of(slot).await?);
        for _ in 0..REDIRECTS {
            let server = self.server(&to.address)?;
            let mut sent = Sent {
                cluster: self,
                address: &to.address,
                answered: false,
            };
            let answer = carry_out(server, to.asking).await;
            let Err(failed) = answer else {
                sent.answered = true;
                return answer;
            };
            let next = match error::redirect(&failed) {
                // This one knows no better than we do: it stays in doubt.
                Some(Redirect::Moved(named)) => To::owner(login::named_by(&to.address, &named)),
                Some(Redirect::Ask(named)) if is_only_key => {
                    sent.answered = true;
                    To {
                        address: login::named_by(&to.address, &named),
                        asking: true,
                    }
                }
                Some(Redirect::Ask(_) | Redirect::Split) => {
                    sent.answered = true;
                    return Err(failed);
                }
                None => return Err(failed),
            };
            drop(sent);
            debug!(
                "the Redis server {} sends a request on to {}",
                to.address, next.address
            );
            events::note(NAME, Event::Redirected);
            to = next;
        }
        Err(no_owner(slot))
    }

    /// All servers that have slots, those in doubt last, else in a random order: not all shall listen to the same one.
    pub(crate) async fn primaries(&self) -> Result<Vec<(String, Arc<Server>)>, StoreError> {
        if self.map().ranges.is_empty() {
            self.look_up(Instant::now()).await?;
        }
        let mut addresses: Vec<_> = {
            let map = self.map();
            // A set has an order of its own each time.
            let known: HashSet<_> = map.ranges.iter().map(|range| &range.address).collect();
            known
                .into_iter()
                .map(|address| (map.doubted.contains_key(address), address.clone()))
                .collect()
        };
        addresses.sort_by_key(|(is_doubted, _)| *is_doubted);
        addresses
            .into_iter()
            .map(|(_, address)| {
                let server = self.server(&address)?;
                Ok((address, server))
            })
            .collect()
    }

    /// A connection that hears what is published anywhere in the cluster, and the address that it leads to.
    pub(crate) async fn listener(&self) -> Result<(PubSub, String), StoreError> {
        let mut failed = nobody(&self.seeds);
        for (address, server) in self.primaries().await? {
            match server.listener().await {
                Err(error) => {
                    self.map().doubted.insert(address, Instant::now());
                    failed = error;
                }
                Ok((listener, _)) => return Ok((listener, address)),
            }
        }
        Err(failed)
    }

    /// Completes when the server at this address has no slots any more. It asks from time to time, because a server that
    /// is only listened to may leave unnoticed.
    pub(crate) async fn left(&self, address: &str) {
        loop {
            // Registers first, so that a change before the await is seen.
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.map().ranges.iter().all(|range| range.address != address) {
                return;
            }
            if timeout(ASK_EVERY, left).await.is_err() {
                // Without an answer nothing is known.
                let _ = self.look_up(Instant::now()).await;
            }
        }
    }

    pub(crate) fn close(&self) {
        let mut map = self.map();
        map.closed = true;
        map.servers.drain().for_each(|(_, server)| server.close());
    }

    /// The server that has a slot. It is asked for anew if it is not known or in doubt.
    async fn address_of(&self, slot: u16) -> Result<String, StoreError> {
        let since = {
            let map = self.map();
            match slots::find(&map.ranges, slot) {
                None => Instant::now(),
                Some(known) => match map.doubted.get(known) {
                    None => return Ok(known.to_owned()),
                    Some(since) => *since,
                },
            }
        };
        let looked = self.look_up(since).await;
        let found = slots::find(&self.map().ranges, slot).map(str::to_owned);
        found.ok_or_else(|| {
            looked.err().unwrap_or_else(|| {
                StoreError::new(
                    StoreErrorKind::Unreachable,
                    format!(
                        "no server of the Redis Cluster has slot {slot}: `redis-cli --cluster check` says why"
                    ),
                )
            })
        })
    }

    /// Asks who has which slot, unless somebody has asked since then.
    async fn look_up(&self, since: Instant) -> Result<(), StoreError> {
        let mut asked = self.asked.lock().await;
        match &*asked {
            Some((at, answer)) if *at >= since => answer.clone(),
            _ => {
                let at = Instant::now();
                let answer = self.ask_several().await;
                *asked = Some((at, answer.clone()));
                answer
            }
        }
    }

    /// Learns from several servers who has which slot. Those in doubt are asked only if no other one answers.
    async fn ask_several(&self) -> Result<(), StoreError> {
        let (doubted, trusted): (Vec<_>, Vec<_>) = {
            let map = self.map();
            let known = map.ranges.iter().map(|range| &range.address);
            // A set has an order of its own each time, so it is not always the same servers that are asked.
            let known: HashSet<&String> = known.chain(map.servers.keys()).chain(&self.seeds).collect();
            let known = known.into_iter().cloned();
            known.partition(|address| map.doubted.contains_key(address))
        };
        let mut failed: Option<StoreError> = None;
        for some in trusted.chunks(ASKED).chain(doubted.chunks(ASKED)) {
            let mut said = Vec::new();
            for (address, answer) in some
                .iter()
                .zip(join_all(some.iter().map(|one| self.ask_one(one))).await)
            {
                match answer {
                    Ok(ranges) => said.extend(ranges),
                    Err(error) => {
                        self.map()
                            .doubted
                            .entry(address.clone())
                            .or_insert_with(Instant::now);
                        // Of several errors, one that does not pass by itself says more.
                        failed = Some(failed.filter(|before| !before.is_retryable()).unwrap_or(error));
                    }
                }
            }
            if !said.is_empty() {
                self.learn(said);
                return Ok(());
            }
        }
        Err(failed.unwrap_or_else(|| nobody(&self.seeds)))
    }

    /// Who has which slot, says the server at an address. The epochs come first: a server that learns of a change
    /// between the two answers must not lend the new epoch to the former owner.
    async fn ask_one(&self, address: &str) -> Result<Vec<Range>, StoreError> {
        let mut questions = redis::pipe();
        for about in ["NODES", "SLOTS"] {
            questions.cmd("CLUSTER").arg(about);
        }
        let ((nodes, slots), _): ((String, Value), _) = self.login.ask_all(address, &questions, None).await?;
        let ranges = slots::read(&nodes, slots, address)?;
        if ranges.is_empty() {
            return Err(StoreError::new(
                StoreErrorKind::Unreachable,
                format!("{address} knows of no server with slots: `redis-cli --cluster check` says why"),
            ));
        }
        Ok(ranges)
    }

    /// Keeps what was said, unless something newer is known. Of a server in doubt only what is sure is known: a cut-off
    /// primary that is back tells an older epoch, and would grant again what its successor has granted. Leaves servers
    /// that have no slots any more: their connections end with the requests that are on their way there.
    fn learn(&self, mut said: Vec<Range>) {
        let (left, is_moved): (Vec<String>, bool) = {
            let mut map = self.map();
            let Map {
                ranges,
                doubted,
                servers,
                ..
            } = &mut *map;
            let known = |range: &&Range| range.is_sure || !doubted.contains_key(&range.address);
            said.extend(ranges.iter().filter(known).cloned());
            let before = std::mem::replace(ranges, slots::newest(&said));
            let is_left = |address: &str| ranges.iter().all(|range| range.address != address);
            doubted.retain(|address, _| !is_left(address) || self.seeds.contains(address));
            let left = servers.extract_if(|address, _| is_left(address));
            let left = left.map(|(address, _)| address).collect();
            (left, slots::is_moved(&before, ranges))
        };
        self.left.notify_waiters();
        if is_moved {
            info!("some slots of the Redis Cluster have another server than before");
            events::note(NAME, Event::Moved);
        }
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
        let way = Way::Server(self.login.at(address)?);
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

    #[test]
    fn an_older_answer_replaces_no_owner_in_doubt() {
        let cluster = Cluster::new(Login::new("redis", "", ""), Vec::new());
        let owner = || slots::find(&cluster.map().ranges, 5).map(str::to_owned);
        let asked = |answered| {
            drop(Sent {
                cluster: &cluster,
                address: "new",
                answered,
            });
        };
        cluster.learn(vec![Range::of(0, 9, "new", 2)]);
        asked(false);
        cluster.learn(vec![Range::of(0, 9, "former", 1)]);
        assert_eq!(owner().as_deref(), Some("former"), "nobody else has told of it");

        cluster.learn(vec![Range::of(0, 9, "new", 2)]);
        asked(true);
        asked(false);
        cluster.learn(vec![Range::of(0, 9, "former", 1)]);
        assert_eq!(owner().as_deref(), Some("new"), "it has carried out a request");
        cluster.learn(vec![Range::of(0, 9, "newer", 3)]);
        assert_eq!(owner().as_deref(), Some("newer"));
    }

    #[tokio::test]
    async fn a_server_that_is_left_still_answers_who_asked_it() {
        let Some(url) = dblock_tests::redis_cluster_url() else {
            return;
        };
        let store = RedisStore::new(&url).unwrap();
        let Deployment::Cluster { cluster, .. } = &store.deployment else {
            panic!("{store:?}");
        };
        let (address, server) = cluster.primaries().await.unwrap().remove(0);
        let mut elsewhere = std::mem::take(&mut cluster.map().ranges);
        elsewhere.retain(|range| range.address != address);
        cluster.learn(elsewhere);
        assert!(!cluster.map().servers.contains_key(&address));
        server.ask::<Value>(&redis::cmd("PING")).await.unwrap();
    }
}
