//! Where the primary is, as the Sentinels see it.
//!
//! They are asked before a connection is opened, and once a second while one is in use: a primary that was stopped and
//! wakes up does not know for some seconds that another has taken its place.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dblock::store::{StoreError, StoreErrorKind};
use redis::Client;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::login::{Login, address};

/// How old the Sentinels' last answer may be while a connection is in use.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Sentinels {
    /// The name under which they watch the primary.
    name: String,
    login: Login,
    addresses: Vec<String>,
    primary: Login,
    database: i64,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    primary: Option<String>,
    asked: Option<Instant>,
    /// The Sentinel that answered last is asked first.
    first: usize,
}

impl Sentinels {
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
        })
    }

    /// The way to the primary of this moment, and its address.
    pub(crate) async fn primary(&self) -> Result<(Client, String), StoreError> {
        let address = self.ask().await?;
        Ok((self.primary.client(&address)?, address))
    }

    pub(crate) fn database(&self) -> i64 {
        self.database
    }

    /// Whether a connection that leads to this address still leads to the primary. Without an answer it does, because the
    /// server itself refuses writes once it knows better.
    pub(crate) async fn confirm(&self, address: &str) -> bool {
        {
            let mut seen = self.seen();
            if seen.primary.as_deref() != Some(address) {
                return false;
            }
            if seen.asked.is_some_and(|asked| asked.elapsed() < FRESH) {
                return true;
            }
            seen.asked = Some(Instant::now());
        }
        self.ask().await.map_or(true, |found| found == address)
    }

    /// Asks one after the other until one knows the primary.
    async fn ask(&self) -> Result<String, StoreError> {
        let first = self.seen().first;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let mut failed = None;
        for place in (0..self.addresses.len()).map(|offset| (first + offset) % self.addresses.len()) {
            let asked: Result<Option<(String, u16)>, _> =
                self.login.ask(&self.addresses[place], &question).await;
            match asked {
                Ok(Some((host, port))) => {
                    let found = address(&host, port);
                    self.note(place, &found);
                    return Ok(found);
                }
                Ok(None) => failed = Some(self.unknown()),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let failed = failed.unwrap_or_else(|| self.unknown());
        let message = format!(
            "none of the {} Sentinels says where the primary is: {failed}",
            self.addresses.len()
        );
        Err(StoreError::new(failed.kind(), message).with_source(failed))
    }

    fn unknown(&self) -> StoreError {
        let message = format!(
            "they watch no primary with the name {:?}: give the name of `sentinel monitor` in their settings",
            self.name
        );
        StoreError::new(StoreErrorKind::Unsupported, message)
    }

    /// Remembers who the primary is, and says so when that has changed.
    fn note(&self, place: usize, found: &str) {
        let before = {
            let mut seen = self.seen();
            seen.first = place;
            seen.asked = Some(Instant::now());
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
