//! Carries out faults. Not every fault can be injected: a process that is being killed cannot be stopped, and a
//! server that is down loses no replies.

mod disk;
mod ensemble;
mod fail_over;
mod network;
mod operator;
mod redis;
mod server;

use std::time::Duration;

use dblock::LockManager;

use crate::fault::Fault;
use crate::history::{Event, Journal};
use crate::processes::Processes;
use crate::target::Target;

/// The targets of faults.
#[derive(Debug)]
pub(crate) struct Injector<'a> {
    pub(crate) processes: &'a Processes<'a>,
    pub(crate) target: &'a Target,
    /// The operator's manager, past the proxies.
    pub(crate) locks: &'a LockManager,
    pub(crate) journal: &'a Journal,
}

impl Injector<'_> {
    /// Carries out one fault, to its end. Returns whether it was injected.
    ///
    /// # Errors
    /// Only when the run itself is broken.
    pub(crate) async fn inject(&self, fault: &Fault) -> anyhow::Result<bool> {
        self.journal.write(Event::Fault { fault: fault.clone() });
        let injected = self.carry_out(fault).await?;
        self.journal.write(Event::Done {
            fault: fault.clone(),
            injected,
        });
        Ok(injected)
    }

    async fn carry_out(&self, fault: &Fault) -> anyhow::Result<bool> {
        match *fault {
            Fault::Kill { slot } => {
                let Some(mut process) = self.processes.idle(slot) else {
                    return Ok(false);
                };
                self.processes.replace(&mut process).await?;
            }
            Fault::KillInRun { slot, step } => {
                let mut process = self.processes.wait_for(slot).await;
                return self.processes.replace_stalled(&mut process, step.name()).await;
            }
            Fault::KillInTransaction { slot } => {
                let mut process = self.processes.wait_for(slot).await;
                return self
                    .processes
                    .replace_stalled(&mut process, "in a transaction")
                    .await;
            }
            Fault::Pause { slot, ms } => {
                let Some(mut process) = self.processes.idle(slot) else {
                    return Ok(false);
                };
                self.processes.pause(&mut process, millis(ms)).await?;
            }
            Fault::ExhaustPool { slot, ms } => {
                let Some(mut process) = self.processes.idle(slot) else {
                    return Ok(false);
                };
                return Ok(process.send(&format!("exhaust {ms}\n")).await.is_ok());
            }
            Fault::ClockJump { slot, to_s } => self.processes.set_clock(slot, to_s)?,
            Fault::ServerClock { to_ms } => match &self.target.clock {
                Some(clock) => clock.set(to_ms)?,
                None => return Ok(false),
            },
            Fault::ForceRelease { key } => return Ok(self.force_release(key).await),
            Fault::Revoke { key } => return Ok(self.revoke(key).await),
            Fault::KillLeader { .. } | Fault::StopLeader { .. } | Fault::LoseQuorum { .. } => {
                return self.on_ensemble(fault).await;
            }
            Fault::SlowCommits { .. } if self.target.ensemble.is_some() => {
                return self.on_ensemble(fault).await;
            }
            Fault::KillServer
            | Fault::StopServer
            | Fault::SlowCommits { .. }
            | Fault::Terminate { .. }
            | Fault::ExhaustServer { .. } => {
                return self.on_server(fault).await;
            }
            Fault::LosePower
            | Fault::FillDisk { .. }
            | Fault::FailDisk { .. }
            | Fault::ReadOnlyDisk { .. } => return self.on_disk(fault).await,
            Fault::FailOver { stop, ms } => return self.fail_over(stop, millis(ms)).await,
            Fault::LockFile { ms } => return self.lock_file(millis(ms)).await,
            _ => return Ok(self.on_network(fault).await),
        }
        Ok(true)
    }
}

fn millis(ms: u32) -> Duration {
    Duration::from_millis(u64::from(ms))
}
