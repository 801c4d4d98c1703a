//! Looks for what could keep locks from working, or make them slow.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dblock_core::Finding;
use dblock_core::store::StoreError;

use crate::error;
use crate::session::Ensemble;

/// Above this the times that people read on both sides do not fit together.
const CLOCKS_APART: Duration = Duration::from_secs(2);

/// Above this a lock takes long enough for people to notice.
const SLOW: Duration = Duration::from_millis(50);

/// A server that cannot keep locks is refused when the session is opened, so what is looked at here works.
pub(crate) async fn diagnose(ensemble: &Ensemble) -> Result<Vec<Finding>, StoreError> {
    let client = ensemble.client().await?;
    let (sent, wall) = (Instant::now(), SystemTime::now());
    let clock = client.set_data(&ensemble.place.clock(), &[], None).await;
    let clock = clock.map_err(|error| ensemble.failed(&client, error::of_look(error)))?;
    let (clock, took) = (clock.mtime, sent.elapsed());
    let here = (wall.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2).as_millis();
    let offset = i128::from(clock) - i128::try_from(here).unwrap_or_default();
    // A user may have no right to read it.
    let config = client.get_config().await.ok();
    let config = config.map(|(config, _)| String::from_utf8_lossy(&config).into_owned());
    Ok(vec![
        servers(config.as_deref().map(voters)),
        clocks(Duration::from_millis(
            u64::try_from(offset.unsigned_abs()).unwrap_or(u64::MAX),
        )),
        round_trip(took),
    ])
}

/// How many servers vote: those of `server.1=one:2888:3888:participant;2181`. A server by itself names none.
fn voters(config: &str) -> usize {
    let voter = |line: &&str| line.starts_with("server.") && line.contains(":participant");
    config.lines().filter(voter).count().max(1)
}

fn servers(voters: Option<usize>) -> Finding {
    let meaning = "the locks stand and can be used as long as a majority of these servers runs";
    match voters {
        Some(1) => Finding::note(
            "servers",
            "1 server",
            "no lock can be taken or renewed while it is away, and all are lost with its disk",
            "run an ensemble of three servers or more",
        ),
        Some(count) if count % 2 == 0 => Finding::note(
            "servers",
            format!("{count} servers that vote"),
            "an even number stands no more failures than one server less",
            "run an odd number of servers",
        ),
        Some(count) => Finding::fine("servers", format!("{count} servers that vote"), meaning),
        None => Finding::note(
            "servers",
            "unknown: `/zookeeper/config` may not be read",
            meaning,
            "let this user read it, or look for yourself",
        ),
    }
}

fn clocks(apart: Duration) -> Finding {
    let found = format!("the leader's clock and this host's are about {apart:?} apart");
    let meaning = "the leader's clock alone decides when a lease ends; when another server leads, a difference between \
                   their clocks is a jump, and one ahead by more than a twentieth of the ttl ends leases too early";
    if apart > CLOCKS_APART {
        let remedy = "let NTP keep the clocks of all servers, and let it slew rather than step";
        return Finding::note("clock", found, meaning, remedy);
    }
    Finding::fine("clock", found, meaning)
}

fn round_trip(took: Duration) -> Finding {
    let (found, meaning) = (
        format!("a write took {took:?}"),
        "a lock takes two writes, and its release one",
    );
    if took > SLOW {
        let remedy = "run the service nearer to ZooKeeper, give ZooKeeper a disk of its own for its log, or choose a ttl \
                      of several seconds at least";
        return Finding::note("round_trip", found, meaning, remedy);
    }
    Finding::fine("round_trip", found, meaning)
}

#[cfg(test)]
mod tests {
    use dblock_core::Severity;

    use super::*;

    #[test]
    fn voters_are_counted_and_an_odd_number_of_them_is_fine() {
        let line = |n: u32| format!("server.{n}=127.0.0.1:2:3:participant;127.0.0.1:1\n");
        let three = format!(
            "{}{}{}server.4=h:2:3:observer;1\nversion=0",
            line(1),
            line(2),
            line(3)
        );
        assert_eq!(voters(&three), 3);
        assert_eq!(voters(""), 1);
        for (voters, severity) in [(1, Severity::Note), (2, Severity::Note), (3, Severity::Fine)] {
            assert_eq!(servers(Some(voters)).severity, severity);
        }
    }

    #[test]
    fn clocks_that_are_far_apart_and_slow_writes_are_worth_knowing() {
        assert_eq!(clocks(Duration::from_secs(1)).severity, Severity::Fine);
        assert_eq!(clocks(Duration::from_secs(3)).severity, Severity::Note);
        assert_eq!(round_trip(Duration::from_millis(5)).severity, Severity::Fine);
        assert_eq!(round_trip(Duration::from_millis(500)).severity, Severity::Note);
    }
}
