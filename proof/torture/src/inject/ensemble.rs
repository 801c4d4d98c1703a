//! Faults of the servers of an ensemble.

use std::time::Duration;

use anyhow::Context as _;
use tokio::time::sleep;

use super::{Injector, millis};
use crate::fault::Fault;

/// How long a leader that was woken may take to notice that there is another one.
const STEPS_DOWN: Duration = Duration::from_secs(1);

impl Injector<'_> {
    /// Carries out a fault of an ensemble. Returns when all servers run again.
    pub(super) async fn on_ensemble(&self, fault: &Fault) -> anyhow::Result<bool> {
        let ensemble = self.target.ensemble.as_ref();
        // One fault of the servers at a time.
        let Ok(mut ensemble) = ensemble.context("there is an ensemble")?.try_lock() else {
            return Ok(false);
        };
        let Some(leader) = ensemble.leader().await else {
            return Ok(false);
        };
        let followers = [(leader + 1) % 3, (leader + 2) % 3];
        match *fault {
            Fault::KillLeader { ms } => {
                ensemble.servers[leader].kill();
                sleep(millis(ms)).await;
                ensemble.restart_killed().await?;
            }
            Fault::LoseQuorum { ms } => {
                ensemble.servers[leader].kill();
                ensemble.servers[followers[0]].kill();
                sleep(millis(ms)).await;
                ensemble.restart_killed().await?;
            }
            Fault::StopLeader { ms } => {
                ensemble.servers[leader].pause()?;
                sleep(millis(ms)).await;
                ensemble.servers[leader].wake()?;
                sleep(STEPS_DOWN).await;
            }
            // The leader alone can commit nothing.
            Fault::SlowCommits { ms } => {
                for follower in followers {
                    ensemble.servers[follower].pause()?;
                }
                sleep(millis(ms)).await;
                for follower in followers {
                    ensemble.servers[follower].wake()?;
                }
            }
            _ => unreachable!("not a fault of an ensemble"),
        }
        Ok(true)
    }
}
