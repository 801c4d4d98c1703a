//! Where the primary is, as the Sentinels see it.
//!
//! They are asked before a connection is opened, and once a second while one is in use: a primary that was
//! stopped and wakes up does not know for some seconds that another has taken its place. All of them are
//! asked, because one may be cut off and name the primary of yesterday.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dblock_core::store::events::{self, Event};
use dblock_core::store::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::login::{Clients, Login, Target, address};
use crate::{NAME, error};

/// How old the Sentinels' last answer may be while a connection is in use.
const FRESH: Duration = Duration::from_secs(1);

/// A connection that was unused for this long is opened again: a firewall may have dropped it.
const IDLE: Duration = Duration::from_secs(10);

/// The longest time that a request waits for their answer. After it the request goes on, and a later one
/// learns of the answer. Meanwhile an old primary that is back may grant a lock that the new one has granted
/// too. So this is longer than an answer takes on a slow network.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) struct Sentinels {
    /// The name under which they watch the primary.
    name: String,
    login: Login,
    addresses: Vec<String>,
    primary: Login,
    database: i64,
    seen: Mutex<Seen>,
    /// The open connections, and when they were used last.
    open: Mutex<HashMap<String, (MultiplexedConnection, Instant)>>,
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
    /// The epoch of the latest fail-over that they have told of.
    epoch: Option<u64>,
}

/// The answers of a Sentinel: all about the primary, and where it is.
type Told = (RedisResult<Value>, RedisResult<Option<(String, u16)>>);

/// An address, and how many Sentinels name it.
#[derive(Debug, PartialEq, Eq)]
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

    /// Leaves out the addresses from before a fail-over that is known. A Sentinel that tells no epoch is believed.
    fn keep_newest(&mut self, votes: &mut Vec<Vote>) {
        self.epoch = votes
            .iter()
            .map(|vote| vote.epoch)
            .max()
            .max(Some(self.epoch))
            .flatten();
        votes.retain(|vote| vote.epoch.is_none() || vote.epoch == self.epoch);
    }
}

/// Whether the primary is where these Sentinels say, of so many. A majority of several may begin anew, with a smaller
/// epoch than is known. One alone may be cut off together with a former primary.
fn decides(vote: &Vote, sentinels: usize, known: Option<u64>) -> bool {
    vote.by * 2 > sentinels && (vote.by > 1 || vote.epoch.is_none() || vote.epoch >= known)
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
            open: Mutex::default(),
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
        let database = primary.at("localhost:1")?.database();
        Ok(Self {
            name: name.to_owned(),
            login,
            addresses,
            primary,
            database,
            seen: Mutex::default(),
            open: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn database(&self) -> i64 {
        self.database
    }

    /// The server at an address.
    pub(crate) fn at(&self, address: &str) -> Result<Target, StoreError> {
        self.primary.at(address)
    }

    /// The same, by clients that are made in this way.
    pub(crate) fn made_by(self, clients: &Clients) -> Self {
        Self {
            login: self.login.made_by(clients.clone()),
            primary: self.primary.made_by(clients.clone()),
            ..self
        }
    }

    /// Where the primary is: the address that more than half of the Sentinels name. If no address has so
    /// many, all that are named and not known to be replaced, the most often named first.
    pub(crate) async fn named(self: &Arc<Self>) -> Result<Vec<String>, StoreError> {
        let mut asked = JoinSet::new();
        for sentinel in &self.addresses {
            let (sentinels, sentinel) = (Arc::clone(self), sentinel.clone());
            asked.spawn(async move { sentinels.ask(&sentinel).await });
        }
        let mut votes: Vec<Vote> = Vec::new();
        let mut failed: Option<StoreError> = None;
        while let Some(answer) = asked.join_next().await {
            let (named, epoch) = match answer {
                Ok(Ok(found)) => found,
                // A panic, or the runtime's end.
                Err(_) => continue,
                Ok(Err(error)) => {
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
            if decides(vote, self.addresses.len(), self.seen().epoch) {
                // The others may still connect, and are then asked on these connections.
                asked.detach_all();
                let Vote { named, epoch, .. } = votes.swap_remove(place);
                let mut seen = self.seen();
                seen.epoch = epoch.or(seen.epoch);
                return Ok(vec![named]);
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
        self.seen().keep_newest(&mut votes);
        if votes.is_empty() {
            let message =
                "the Sentinels that answer do not know of the last fail-over, and are fewer than half";
            return Err(StoreError::new(StoreErrorKind::Unreachable, message));
        }
        votes.sort_by_key(|vote| Reverse(vote.by));
        Ok(votes.into_iter().map(|vote| vote.named).collect())
    }

    /// Where the connection in use leads to, or else the address that they name first.
    pub(crate) async fn current(self: &Arc<Self>) -> Result<String, StoreError> {
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
    async fn look_after(self: &Arc<Self>, address: &str) {
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
        let open = self.open().get(sentinel).cloned();
        let open = open.filter(|(_, used)| used.elapsed() < IDLE);
        let open = open.map(|(connection, _)| connection);
        let asked = self
            .login
            .ask_all::<Told>(sentinel, questions.ignore_errors(), open);
        let asked = asked.await.inspect_err(|_| drop(self.open().remove(sentinel)));
        let ((told, named), connection) = asked?;
        self.open()
            .insert(sentinel.to_owned(), (connection, Instant::now()));
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
            Some(before) => {
                warn!(
                    "the Redis primary {name:?} is {found} now, and no longer {before}: locks that it had not received are lost"
                );
                events::note(NAME, Event::Moved);
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, (MultiplexedConnection, Instant)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sentinels")
            .field("name", &self.name)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use dblock_servers::{Kind, Purpose, RedisSentinel, is_installed};

    use super::{Seen, Vote, decides};
    use crate::url::{Place, read};

    fn vote(named: &str, epoch: impl Into<Option<u64>>) -> Vote {
        Vote {
            named: named.to_owned(),
            by: 1,
            epoch: epoch.into(),
        }
    }

    /// Also when those that knew of it are silent now.
    #[test]
    fn one_sentinel_alone_does_not_lead_back_to_a_former_primary() {
        let by = |by, epoch| Vote {
            named: String::new(),
            by,
            epoch,
        };
        assert!(decides(&by(1, Some(2)), 1, Some(2)));
        assert!(!decides(&by(1, Some(1)), 1, Some(2)));
        assert!(decides(&by(1, None), 1, Some(2)), "it tells no epoch");
        assert!(decides(&by(2, Some(1)), 3, Some(2)));
        assert!(!decides(&by(1, Some(2)), 2, Some(2)));
    }

    #[test]
    fn the_primary_from_before_a_known_fail_over_is_left_out() {
        let mut seen = Seen::default();
        let mut votes = vec![vote("old", 1), vote("new", 2), vote("untold", None)];
        seen.keep_newest(&mut votes);
        assert_eq!(votes, [vote("new", 2), vote("untold", None)]);
        let mut votes = vec![vote("old", 1)];
        seen.keep_newest(&mut votes);
        assert_eq!(votes, []);
        let mut votes = vec![vote("newer", 3)];
        seen.keep_newest(&mut votes);
        assert_eq!(votes, [vote("newer", 3)]);
    }

    #[tokio::test]
    async fn a_sentinel_is_asked_on_a_connection_that_stays_open() {
        if !is_installed(Kind::Redis) {
            dblock_tests::left_out("Redis servers of its own", "install redis-server");
            return;
        }
        let servers = RedisSentinel::fresh(0, Purpose::Tests).await.unwrap();
        let Place::Sentinels(sentinels) = read(servers.url()).unwrap().0 else {
            panic!("{}", servers.url());
        };
        let mut received = Vec::new();
        for _ in 0..2 {
            let mut all = 0;
            for address in &sentinels.addresses {
                let client = sentinels.login.at(address).unwrap().client().await.unwrap();
                let mut itself = client.get_multiplexed_async_connection().await.unwrap();
                let mut ask = redis::cmd("INFO");
                let info: String = ask.arg("stats").query_async(&mut itself).await.unwrap();
                let count = crate::server::Info::read(&info).get("total_connections_received");
                all += count.parse::<u64>().unwrap();
            }
            received.push(all);
            for _ in 0..50 {
                sentinels.named().await.unwrap();
            }
        }
        // They connect with each other, too.
        let connections = received[1] - received[0];
        assert!(connections < 20, "{connections}");
    }
}
