//! Messages: each travels by itself, and arrives whether or not its sender still waits.

use std::sync::Arc;

use dblock::Key;
use dblock::store::{Outcome, Request, StoreError, StoreErrorKind, WakeUp};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use crate::chance::{chance, ms, pick};
use crate::network::{Answers, Fate, Line, Listener};
use crate::world::{World, tell};

/// The requests of a batch, until its sender no longer waits for them.
struct WaitedFor<'a> {
    world: &'a World,
    line: &'a Line,
    keys: Vec<Key>,
}

impl<'a> WaitedFor<'a> {
    fn new(world: &'a World, line: &'a Line, requests: &[Request]) -> Self {
        for request in requests {
            let place = (line.process, line.life, request.key.clone());
            if !world.network().waited_for.insert(place) {
                world.fail(format!(
                    "two requests: {line} has one for {} on its way",
                    request.key.as_str()
                ));
            }
        }
        let keys = requests.iter().map(|request| request.key.clone()).collect();
        Self { world, line, keys }
    }
}

impl Drop for WaitedFor<'_> {
    fn drop(&mut self) {
        let mut network = self.world.network();
        network.heard_at[self.line.process] = Instant::now();
        for key in self.keys.drain(..) {
            network
                .waited_for
                .remove(&(self.line.process, self.line.life, key));
        }
    }
}

impl World {
    /// A message is on its way.
    pub(crate) async fn way(&self) {
        let slow = !self.network().calm && chance(self.plan.faults.slow);
        let way = if slow {
            ms(20..=pick(&[100, 1000, 2600]))
        } else {
            self.plan.usual_way()
        };
        sleep(way).await;
    }

    /// Sends a batch, and waits for the answers or for the end of the connection.
    pub(crate) async fn send(self: &Arc<Self>, line: &Arc<Line>, requests: &[Request]) -> Answers {
        let _waited_for = WaitedFor::new(self, line, requests);
        let fate = self.fate(line);
        for request in requests {
            tell!(self, "{line} sends {} ({fate:?})", self.request(request));
        }
        let (to, answers) = oneshot::channel();
        let broken = line.broken();
        let message = Message {
            world: Arc::clone(self),
            line: Arc::clone(line),
            requests: requests.to_vec(),
        };
        tokio::spawn(message.travel(fate, to));
        let answers = tokio::select! {
            biased;
            answers = answers => answers.ok(),
            () = broken => None,
        };
        let answers = answers.unwrap_or_else(|| all(requests, StoreErrorKind::Interrupted));
        for (request, answer) in requests.iter().zip(&answers) {
            tell!(
                self,
                "{line} hears of {}: {}",
                request.key.as_str(),
                self.answer(answer)
            );
        }
        answers
    }

    /// A message that changes nothing goes there, or back.
    ///
    /// # Errors
    /// It does not arrive.
    pub(crate) async fn reach(&self, line: &Line) -> Result<(), StoreError> {
        let fate = self.fate(line);
        self.way().await;
        match fate {
            Fate::Unreachable => Err(error(StoreErrorKind::Unreachable)),
            Fate::Lost { hangs, .. } | Fate::Late { hangs, .. } | Fate::Repeated { hangs, .. } => {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Err(error(StoreErrorKind::Interrupted))
            }
            Fate::Goes | Fate::Refused => Ok(()),
        }
    }

    // ── Wake-ups ─────────────────────────────────────────────────────────────────────────────────────

    /// From here on the server sends the wake-ups to this connection too.
    pub(crate) fn listens(&self, line: &Arc<Line>) -> mpsc::UnboundedReceiver<WakeUp> {
        let (to, told) = mpsc::unbounded_channel();
        let line = Arc::clone(line);
        self.network().listeners.push(Listener { line, to });
        told
    }

    fn wakes(self: &Arc<Self>, wake_up: &WakeUp) {
        if !self.plan.wake_ups {
            return;
        }
        tell!(self, "the server tells that {}", self.wake_up(wake_up));
        let listeners: Vec<_> = {
            let mut network = self.network();
            network.listeners.retain(|listener| !listener.to.is_closed());
            let reached = |listener: &&Listener| !network.is_cut(&listener.line);
            network
                .listeners
                .iter()
                .filter(reached)
                .map(|listener| listener.to.clone())
                .collect()
        };
        let calm = self.network().calm;
        for to in listeners {
            let faults = &self.plan.faults;
            if !calm && chance(faults.lost_wake_ups) {
                continue;
            }
            let repeats = !calm && chance(faults.repeated_wake_ups);
            let (world, wake_up) = (Arc::clone(self), wake_up.clone());
            tokio::spawn(async move {
                world.way().await;
                // A listener that is gone needs no wake-up.
                let _ = to.send(wake_up.clone());
                if repeats {
                    sleep(ms(1..=pick(&[30, 1000, 6000]))).await;
                    let _ = to.send(wake_up);
                }
            });
        }
    }
}

/// A batch on its way.
struct Message {
    world: Arc<World>,
    line: Arc<Line>,
    requests: Vec<Request>,
}

impl Message {
    async fn travel(self, fate: Fate, answer: oneshot::Sender<Answers>) {
        self.world.way().await;
        // Nobody hears of a sender that is gone.
        let say = |answer: oneshot::Sender<Answers>, answers| drop(answer.send(answers));
        match fate {
            Fate::Unreachable => say(answer, all(&self.requests, StoreErrorKind::Unreachable)),
            Fate::Refused => say(answer, all(&self.requests, StoreErrorKind::Conflict)),
            Fate::Goes => {
                let Some(answers) = self.arrive() else { return };
                self.world.way().await;
                say(answer, answers);
            }
            Fate::Repeated { hangs, by } => {
                self.arrive();
                let again = async {
                    sleep(by).await;
                    self.arrive();
                };
                tokio::join!(again, lose(answer, hangs));
            }
            Fate::Lost { carried_out, hangs } => {
                if carried_out {
                    self.arrive();
                }
                lose(answer, hangs).await;
            }
            Fate::Late { hangs, by } => {
                let late = async {
                    sleep(by).await;
                    self.arrive();
                };
                tokio::join!(late, lose(answer, hangs));
            }
        }
    }

    /// The server carries the requests out, unless it is away.
    fn arrive(&self) -> Option<Answers> {
        let world = &self.world;
        if world.network().is_down() {
            return None;
        }
        let answers = self.requests.iter().map(|request| {
            if !world.network().calm && chance(world.plan.faults.skipped) {
                return Ok(Outcome::Skipped);
            }
            let done = world.server.carry_out(request);
            let (line, answer) = (&self.line, world.answer(&done.answer));
            tell!(world, "the server: {line}, {} → {answer}", world.request(request));
            world.checks().sees(line, request);
            if let Some(wakes) = &done.wakes {
                world.wakes(wakes);
            }
            done.answer
        });
        Some(answers.collect())
    }
}

/// The sender hears nothing, or that the connection has broken.
async fn lose(answer: oneshot::Sender<Answers>, hangs: bool) {
    if hangs {
        std::future::pending::<()>().await;
    }
    drop(answer);
}

fn all(requests: &[Request], kind: StoreErrorKind) -> Answers {
    requests.iter().map(|_| Err(error(kind))).collect()
}

pub(crate) fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "the network")
}
