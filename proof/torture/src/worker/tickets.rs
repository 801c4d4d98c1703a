//! Locks that go into tickets. A ticket is a file in the folder of the run, which any process may find: one adopts the
//! ticket, two do, or nobody does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dblock::LockError;
use fastrand::Rng;
use tokio::time::{sleep, timeout};

use super::Worker;
use super::call::{Asked, Origin};
use super::mix::{self, LONGEST_TTL, Plan};
use crate::history::{Event, now};
use crate::process_id::ProcessId;

/// The call that has made a ticket, and the ticket as text.
type Found = (ProcessId, u64, String);

impl Worker {
    /// Makes a ticket of a lock, or adopts one.
    pub(super) async fn go_on_with_tickets(self: &Arc<Self>, mut rng: Rng, gives: bool) {
        loop {
            sleep(Duration::from_millis(rng.u64(..800))).await;
            let plan = mix::ticket(&mut rng, gives).no_shorter_than(self.locks.capabilities().shortest_ttl);
            let ttl = plan
                .ttl
                .max(Duration::from_millis(rng.u64(..5_000)))
                .min(LONGEST_TTL);
            let stays = rng.bool();
            let call = async {
                if gives {
                    Box::pin(self.give(&plan, ttl)).await;
                } else if let Some(found) = self.find(&mut rng, stays) {
                    Box::pin(self.adopt(&plan, found)).await;
                }
            };
            // A call that is dropped writes its end.
            let _ = timeout(plan.dropped_after.unwrap_or(Duration::MAX), call).await;
        }
    }

    async fn give(self: &Arc<Self>, plan: &Plan, ttl: Duration) {
        let asked = Asked::write_down(self, plan, Origin::Outermost);
        let call = asked.number;
        let give = async {
            let guard = self.lock(plan).acquire().await?;
            guard.enter(self.section(call, plan, None)).await?;
            let since = now();
            let until = since + i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX);
            let ticket = guard.into_ticket(ttl).await?;
            self.journal.write(Event::Ticket { call, since, until });
            // Renamed, so that nobody reads a half.
            let (draft, name) = (
                format!("draft-{}-{call}", self.process),
                file_of(self.process, call),
            );
            let written = std::fs::write(self.folder.join(&draft), ticket.secret());
            let written =
                written.and_then(|()| std::fs::rename(self.folder.join(draft), self.folder.join(name)));
            written.expect("the folder of the run is there");
            Ok(())
        };
        asked.answer(&give.await);
    }

    async fn adopt(self: &Arc<Self>, plan: &Plan, (giver, ticket, secret): Found) {
        let asked = Asked::write_down(self, plan, Origin::Outermost);
        let call = asked.number;
        self.journal.write(Event::Adopts { call, giver, ticket });
        let adopt = async {
            let ticket = secret.parse().expect("the file is whole");
            let guard = self.locks.adopt(&ticket).await?;
            guard.enter(self.section(call, plan, None)).await?;
            guard.release().await?;
            self.journal.write(Event::Released { call });
            Ok::<_, LockError>(())
        };
        asked.answer(&adopt.await);
    }

    /// A ticket that lies about. If it `stays`, another one will adopt it too.
    fn find(&self, rng: &mut Rng, stays: bool) -> Option<Found> {
        let files = std::fs::read_dir(&self.folder).ok()?.flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let tickets = names.filter_map(|name| of_file(&name));
        // Nobody adopts some of them.
        let tickets: Vec<_> = tickets.filter(|(_, call)| call % 4 != 0).collect();
        let (giver, call) = rng.choice(tickets)?;
        let file: &Path = &self.folder.join(file_of(giver, call));
        let secret = std::fs::read_to_string(file).ok()?;
        if !stays {
            // Another one may have been faster.
            let _ = std::fs::remove_file(file);
        }
        Some((giver, call, secret))
    }
}

fn file_of(giver: ProcessId, call: u64) -> String {
    format!("ticket-{giver}-{call}")
}

fn of_file(name: &str) -> Option<(ProcessId, u64)> {
    let mut parts = name.strip_prefix("ticket-")?.splitn(3, '-');
    let mut number = || parts.next()?.parse().ok();
    let (slot, generation, call) = (number()?, number()?, number()?);
    let slot = usize::try_from(slot).ok()?;
    let generation = usize::try_from(generation).ok()?;
    Some((ProcessId { slot, generation }, call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_the_call_that_made_its_ticket() {
        let giver = ProcessId {
            slot: 3,
            generation: 12,
        };
        assert_eq!(of_file(&file_of(giver, 456)), Some((giver, 456)));
        for other in ["draft-3-12-456", "worker-3-12.jsonl", "ticket-3-12"] {
            assert_eq!(of_file(other), None);
        }
    }
}
