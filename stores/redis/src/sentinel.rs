//! Where the primary is, as the Sentinels see it.
//!
//! They are asked before a connection is opened, and once a second while one is in use: a primary that was
//! stopped and wakes up does not know for some seconds that another has taken its place. All of them are
//! asked, because one may be cut off and name the primary of yesterday.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dblock_core::store::{StoreError, StoreErrorKind};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{Client, RedisResult, Value};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::error;
use crate::login::{Login, address};

/// How old the Sentinels' last answer may be while a connection is in use.
const FRESH: Duration = Duration::from_secs(1);

/// The longest time that a request waits for their answer. After it the request goes on, and a later one
/// learns of the answer. Meanwhile an old primary that is back may grant a lock that the new one has granted
/// too. So this is longer than an answer takes on a slow network.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Sentinels {
    /// The name under which they watch the primary.
    name: String,
    login: Login,
    addresses: Vec<String>,
    primary: Login,
    database: i64,
    seen: Mutex<Seen>,
    /// Held while they are asked, so that requests that come meanwhile wait for the same answer.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Where the connection in use leads to.
    primary: Option<String>,
    /// They name another one now.
    moved: bool,
    /// When they were asked last, and have answered or not.
    asked: Option<Instant>,
    /// They did not answer when they were last asked.
    silent: bool,
}

/// An address, and how many Sentinels name it.
struct Vote {
    named: String,
    by: usize,
    /// The latest that they tell with it.
    epoch: Option<u64>,
}

impl Seen {
    fn is_fresh(&self) -> bool {
        self.asked.is_some_and(|asked| asked.elapsed() < FRESH)
    }
}

impl Sentinels {
    /// The same Sentinels, of which nothing is known yet.
    pub(crate) fn again(&self) -> Self {
        Self {
            name: self.name.clone(),
            login: self.login.clone(),
            addresses: self.addresses.clone(),
            primary: self.primary.clone(),
            database: self.database,
            seen: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// `login` is that to the Sentinels, and `primary` that to the servers.
    pub(crate) fn new(
        name: &str,
        login: Login,
        addresses: Vec<String>,
        primary: Login,
    ) -> Result<Self, StoreError> {
        // Only its settings are looked at.
        let sample = primary.client("localhost:1")?;
        Ok(Self {
            name: name.to_owned(),
            login,
            addresses,
            primary,
            database: sample.get_connection_info().redis_settings().db(),
            seen: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn database(&self) -> i64 {
        self.database
    }

    /// The way to the server at an address.
    pub(crate) fn client(&self, address: &str) -> Result<Client, StoreError> {
        self.primary.client(address)
    }

    /// Where the primary is: the address that more than half of the Sentinels name. If no address has so
    /// many, all that are named and not known to be replaced, the most often named first.
    pub(crate) async fn named(&self) -> Result<Vec<String>, StoreError> {
        let questions = self.addresses.iter().map(|sentinel| self.ask(sentinel));
        let mut asked: FuturesUnordered<_> = questions.collect();
        let mut votes: Vec<Vote> = Vec::new();
        let mut failed: Option<StoreError> = None;
        while let Some(answer) = asked.next().await {
            let (named, epoch) = match answer {
                Ok(found) => found,
                Err(error) => {
                    // Of several errors, one that does not pass by itself says more.
                    failed = Some(failed.filter(|before| !before.is_retryable()).unwrap_or(error));
                    continue;
                }
            };
            let place = votes.iter().position(|vote| vote.named == named);
            let place = place.unwrap_or_else(|| {
                let (by, epoch) = (0, None);
                votes.push(Vote { named, by, epoch });
                votes.len() - 1
            });
            let vote = &mut votes[place];
            vote.by += 1;
            vote.epoch = vote.epoch.max(epoch);
            if vote.by * 2 > self.addresses.len() {
                return Ok(vec![votes.swap_remove(place).named]);
            }
        }
        if votes.is_empty() {
            let failed = failed.unwrap_or_else(|| self.unknown());
            let message = format!(
                "none of the {} Sentinels says where the primary is: {failed}",
                self.addresses.len()
            );
            return Err(StoreError::new(failed.kind(), message).with_source(failed));
        }
        // A primary from before a fail-over of which another Sentinel knows is left out. A Sentinel that
        // tells no epoch is believed.
        let newest = votes.iter().filter_map(|vote| vote.epoch).max();
        votes.retain(|vote| vote.epoch.is_none() || vote.epoch == newest);
        votes.sort_by_key(|vote| Reverse(vote.by));
        Ok(votes.into_iter().map(|vote| vote.named).collect())
    }

    /// Where the connection in use leads to, or else the address that they name first.
    pub(crate) async fn current(&self) -> Result<String, StoreError> {
        let known = self.seen().primary.clone();
        match known {
            Some(known) => Ok(known),
            None => Ok(self.named().await?.swap_remove(0)),
        }
    }

    /// The primary, as errors name it: its address, as far as that is known.
    pub(crate) fn primary(&self) -> String {
        let known = self.seen().primary.clone();
        known.unwrap_or_else(|| {
            format!(
                "the primary {:?} of the Sentinels {}",
                self.name,
                self.addresses.join(", ")
            )
        })
    }

    /// Whether a connection that leads to this address still leads to the primary. Without an answer that is
    /// assumed, because the server itself refuses writes once it knows better.
    pub(crate) async fn confirm(self: &Arc<Self>, address: &str) -> bool {
        let was_silent = {
            let seen = self.seen();
            if seen.moved || seen.primary.as_deref() != Some(address) {
                return false;
            }
            if seen.is_fresh() {
                return true;
            }
            seen.silent
        };
        let (sentinels, address) = (Arc::clone(self), address.to_owned());
        let asked = tokio::spawn(async move { sentinels.look_after(&address).await });
        if !was_silent {
            // An error is a panic's or the runtime's end, and says nothing of the primary.
            let _ = timeout(ANSWER_TIMEOUT, asked).await;
        }
        !self.seen().moved
    }

    /// Finds out whether the primary is still at this address.
    async fn look_after(&self, address: &str) {
        let _asking = self.asking.lock().await;
        if self.seen().is_fresh() {
            return;
        }
        let asked = Instant::now();
        let named = self.named().await;
        let mut seen = self.seen();
        seen.asked = Some(asked);
        seen.silent = named.is_err();
        let is_other = named.is_ok_and(|named| !named.iter().any(|found| found == address));
        seen.moved |= is_other && seen.primary.as_deref() == Some(address);
    }

    /// Where the primary is, and the epoch of the fail-over that brought it there, if the Sentinel tells it.
    ///
    /// The epoch comes first: a Sentinel that learns of a fail-over between the two answers must not lend the
    /// new epoch to the former primary. The first answer has an address too, which is of no use: a Sentinel
    /// that carries out a fail-over tells the new epoch there while it still tells the former address.
    async fn ask(&self, sentinel: &str) -> Result<(String, Option<u64>), StoreError> {
        let mut questions = redis::pipe();
        for about in ["MASTER", "GET-MASTER-ADDR-BY-NAME"] {
            questions.cmd("SENTINEL").arg(about).arg(&self.name);
        }
        let (told, named): (RedisResult<Value>, RedisResult<Option<(String, u16)>>) =
            self.login.ask_all(sentinel, questions.ignore_errors()).await?;
        let named = named.map_err(|error| error::at(sentinel, error::of_connect(error)))?;
        let (host, port) = named.ok_or_else(|| self.unknown())?;
        let epoch = || {
            let told: HashMap<String, String> = redis::from_redis_value(told.ok()?).ok()?;
            told.get("config-epoch")?.parse().ok()
        };
        Ok((address(&host, port), epoch()))
    }

    fn unknown(&self) -> StoreError {
        let message = format!(
            "they watch no primary with the name {:?}: give the name of `sentinel monitor` in their settings",
            self.name
        );
        StoreError::new(StoreErrorKind::Unsupported, message)
    }

    /// Remembers where the new connection leads to, and says so when that has changed.
    pub(crate) fn note(&self, found: &str) {
        let before = {
            let mut seen = self.seen();
            seen.asked = Some(Instant::now());
            (seen.moved, seen.silent) = (false, false);
            if seen.primary.as_deref() == Some(found) {
                return;
            }
            seen.primary.replace(found.to_owned())
        };
        let name = &self.name;
        match before {
            None => info!("the Redis primary {name:?} is {found}, say its Sentinels"),
            Some(before) => warn!(
                "the Redis primary {name:?} is {found} now, and no longer {before}: locks that it had not received are lost"
            ),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
