//! What a caller tells the checks, from the begin of its call to its end, and what is found wrong then.

use std::time::Duration;

use dblock::{Key, LockError, LostReason, Ticket, TimeoutCause};

use crate::checks::{ANSWER, Call, RELEASE, Recorded, STORE, State, TICK, Wait};
use crate::show;
use crate::world::{World, tell};

/// A call, from its begin until it returns or is dropped.
pub(crate) struct Calling<'a> {
    world: &'a World,
    number: u32,
}

/// It is inside. Its drop is the moment in which its body has ended.
pub(crate) struct Inside<'a>(&'a Calling<'a>);

impl World {
    pub(crate) fn begins(&self, call: Call) -> Calling<'_> {
        let since = self.now();
        let mut checks = self.checks();
        checks.last_call += 1;
        let number = checks.last_call;
        let keys: Vec<&str> = call.keys.iter().map(Key::as_str).collect();
        tell!(
            self,
            "{} call {number} for {keys:?}, wait {:?}, limit {:?}",
            call.line,
            call.wait,
            call.limit
        );
        let keys = call.keys.clone();
        let recorded = Recorded {
            call,
            since,
            jumped: checks.jumped,
            state: State::Waiting,
            leaves_within: RELEASE,
            makes_ticket: false,
        };
        checks.calls.insert(number, recorded);
        drop(checks);
        self.look(&keys);
        Calling { world: self, number }
    }

    /// Without a fault, a key for which somebody waits is not idle for long.
    fn look(&self, keys: &[Key]) {
        for key in keys {
            let idle = self
                .checks()
                .look(key, self.now())
                .filter(|idle| *idle > self.longest_idle());
            if let Some(idle) = idle {
                self.fail(format!(
                    "idle: {} was wanted, and nobody had it for {idle:?}",
                    key.as_str()
                ));
            }
        }
    }

    fn longest_idle(&self) -> Duration {
        match (self.plan.healthy, self.all_hear()) {
            (true, true) => Duration::from_millis(150),
            (true, false) => Duration::from_millis(400),
            // A fault may keep a key busy until the lease is over, also that of an adopted ticket.
            (false, _) => Duration::from_secs(45),
        }
    }
}

impl<'a> Calling<'a> {
    /// The call has its locks, with these tokens.
    pub(crate) fn enters<'k>(&'a self, tokens: impl IntoIterator<Item = (&'k str, i64)>) -> Inside<'a> {
        let (world, number, now) = (self.world, self.number, self.world.now());
        tell!(world, "call {number} enters");
        let mut violations = Vec::new();
        let keys = {
            let mut checks = world.checks();
            let checks = &mut *checks;
            let recorded = checks.calls.get_mut(&number).expect("it has begun");
            recorded.state = State::Inside;
            let limit = recorded.call.limit;
            let keys = recorded.call.keys.clone();
            for (key, token) in tokens {
                let inside = |(_, other): &(&u32, &Recorded)| {
                    other.state == State::Inside && other.call.keys.iter().any(|its| its.as_str() == key)
                };
                let others: Vec<_> = checks
                    .calls
                    .iter()
                    .filter(inside)
                    .filter(|(other, _)| **other != number)
                    .collect();
                let alone = |other: &&(&u32, &Recorded)| limit.is_none() || other.1.call.limit.is_none();
                if let Some((other, _)) = others.iter().find(alone) {
                    violations.push(format!("exclusion: {key} has call {number} beside call {other}"));
                }
                if limit.is_some_and(|limit| others.len() >= limit as usize) {
                    violations.push(format!(
                        "exclusion: {} calls share {key}, whose limit is {limit:?}",
                        others.len() + 1
                    ));
                }
                let state = checks.keys.iter_mut().find(|(its, _)| its.as_str() == key);
                let Some((_, state)) = state else { continue };
                let grows = token > state.last_token
                    || limit.is_some() && !state.last_alone && token == state.last_token;
                if !grows {
                    let (token, last) = (world.token(token), world.token(state.last_token));
                    violations.push(format!(
                        "tokens: call {number} has {token} for {key} after {last}"
                    ));
                }
                (state.last_token, state.last_alone) = (token, limit.is_none());
            }
            keys
        };
        violations.extend(self.too_late(now));
        for violation in violations {
            world.fail(violation);
        }
        world.look(&keys);
        Inside(self)
    }

    /// From here on a ticket may keep the key busy for so long. It is made until the lease ends, which has `left`.
    pub(crate) fn gives_ticket(&self, ttl: Duration, left: Duration) {
        let until = self.world.now() + ttl + TICK;
        let mut checks = self.world.checks();
        let checks = &mut *checks;
        let Some(recorded) = checks.calls.get_mut(&self.number) else {
            return;
        };
        recorded.leaves_within = left;
        recorded.makes_ticket = true;
        if let Some(state) = checks.keys.get_mut(&recorded.call.keys[0]) {
            state.ticket_until = until;
        }
    }

    /// The ticket is made: from here on it keeps the key busy, whatever becomes of the call.
    pub(crate) fn has_given(&self, ticket: Ticket) {
        tell!(self.world, "call {} has made a ticket", self.number);
        let mut checks = self.world.checks();
        let checks = &mut *checks;
        let Some(recorded) = checks.calls.get_mut(&self.number) else {
            return;
        };
        recorded.makes_ticket = false;
        checks.tickets.push((ticket, recorded.call.keys[0].clone()));
    }

    /// Why the time that it may take is over.
    fn too_late(&self, now: Duration) -> Option<String> {
        let checks = self.world.checks();
        let Recorded {
            call,
            since,
            jumped,
            state,
            ..
        } = &checks.calls[&self.number];
        let by = match (state, call.wait) {
            (State::Leaving(by), _) => *by,
            (_, Wait::No) => *since + STORE,
            (_, Wait::For(wait)) => *since + wait,
            (_, Wait::Forever) => return None,
        };
        let late = now.checked_sub(by + TICK + checks.jumped.saturating_sub(*jumped))?;
        Some(format!("in time: call {} took {late:?} too long", self.number))
    }

    fn leaves(&self) {
        let now = self.world.now();
        tell!(self.world, "call {} leaves", self.number);
        let keys = {
            let mut checks = self.world.checks();
            let Some(recorded) = checks.calls.get_mut(&self.number) else {
                return;
            };
            recorded.state = State::Leaving(now + recorded.leaves_within);
            recorded.call.keys.clone()
        };
        self.world.look(&keys);
    }

    /// The call returns.
    pub(crate) fn ends(&self, result: &Result<(), LockError>) {
        let world = self.world;
        match result {
            Ok(()) => tell!(world, "call {} returns", self.number),
            Err(error) => tell!(world, "call {} fails: {}", self.number, show::error(error)),
        }
        let judged = result.as_ref().err().and_then(|error| self.judge(error));
        for violation in self.too_late(world.now()).into_iter().chain(judged) {
            world.fail(violation);
        }
    }

    /// Why the error must not be.
    fn judge(&self, error: &LockError) -> Option<String> {
        let (world, now) = (self.world, self.world.now());
        let checks = world.checks();
        let Recorded {
            call, since, state, ..
        } = &checks.calls[&self.number];
        let waits = *state == State::Waiting;
        let ends = call.line.is_ending();
        let early = |wait: Duration| (now + TICK < *since + wait).then_some("before its time");
        let why = match (error, call.wait) {
            (LockError::Invalid { .. }, _) => Some("valid as it is"),
            (LockError::Shutdown { .. }, _) => (!ends).then_some("without a shutdown"),
            (LockError::Busy { .. }, wait) => (wait != Wait::No || !waits).then_some("although it waits"),
            (LockError::Timeout { .. }, Wait::Forever | Wait::No) => Some("without a wait"),
            (LockError::Timeout { cause, .. }, Wait::For(wait)) => {
                let on_its_way = world.network().waits(&call.line) || wait < ANSWER;
                let answered = *cause == TimeoutCause::Held || *cause == TimeoutCause::NoAnswer && on_its_way;
                let fault = world.plan.healthy && !answered;
                fault.then_some("without a fault").or_else(|| early(wait))
            }
            (
                LockError::Lost {
                    reason: LostReason::Ticket,
                    ..
                },
                _,
            ) => (!call.adopts).then_some("without a ticket"),
            // What is on its way when the lease ends is not confirmed.
            (LockError::Lost { .. } | LockError::Unconfirmed { .. }, _) => {
                (world.plan.healthy && !call.may_lose && !ends).then_some("without a fault")
            }
            _ => (world.plan.healthy && !ends).then_some("without a fault"),
        };
        why.map(|why| format!("error: call {} fails {why}: {}", self.number, show::error(error)))
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        let mut checks = self.world.checks();
        let Some(recorded) = checks.calls.remove(&self.number) else {
            return;
        };
        let keys = recorded.call.keys;
        if let Some(state) = checks.keys.get_mut(&keys[0]).filter(|_| recorded.makes_ticket) {
            state.ticket_until = Duration::ZERO;
        }
        drop(checks);
        self.world.look(&keys);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leaves();
    }
}
