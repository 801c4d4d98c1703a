//! Carrying out faults. Each answers whether it came to pass: a process that is being killed cannot be
//! stopped, and a server that is down loses no replies.

mod ensemble;
mod fail_over;
mod network;
mod operator;
mod redis;
mod server;

use std::time::Duration;

use dblock::LockManager;

use crate::crew::Crew;
use crate::fault::Fault;
use crate::history::{Event, Journal};
use crate::target::Target;

/// The targets of faults.
#[derive(Debug)]
pub(crate) struct Injector<'a> {
    pub(crate) crew: &'a Crew<'a>,
    pub(crate) target: &'a Target,
    /// The operator's, past the proxies.
    pub(crate) locks: &'a LockManager,
    pub(crate) journal: &'a Journal,
}

impl Injector<'_> {
    /// Carries out one fault, to its end.
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
            Fault::Kill { seat } => {
                let Some(mut member) = self.crew.idle(seat) else {
                    return Ok(false);
                };
                self.crew.replace(&mut member).await?;
            }
            Fault::KillInRun { seat, step } => {
                let mut member = self.crew.wait_for(seat).await;
                return self.crew.replace_at(&mut member, step).await;
            }
            Fault::Pause { seat, ms } => {
                let Some(mut member) = self.crew.idle(seat) else {
                    return Ok(false);
                };
                self.crew.pause(&mut member, millis(ms)).await?;
            }
            Fault::ExhaustPool { seat, ms } => {
                let Some(mut member) = self.crew.idle(seat) else {
                    return Ok(false);
                };
                return Ok(member.order(&format!("exhaust {ms}\n")).await.is_ok());
            }
            Fault::ClockJump { seat, to_s } => self.crew.set_clock(seat, to_s)?,
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
