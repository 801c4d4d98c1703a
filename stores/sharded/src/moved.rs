//! Requests for keys that move: each is held on two shards, the old one and the new one.
//!
//! Three kinds of processes meet on such a key. Those that do not know the new shards use its old row alone,
//! those that move it use both, and those that have the new shards only use its new row alone. The first and
//! the last never run at the same time. So a process that moves the key and has both rows excludes the two
//! others. The outcomes have these meanings:
//!
//! | acquire at the old shard | at the new one | answer |
//! |---|---|---|
//! | not granted | is not asked | that of the old shard |
//! | granted | granted | `Granted`, once both rows have one token, above all earlier ones of both |
//! | granted | `Queued` | `Queued`; the old row stays held, so a process that waits with the same lease is next on both |
//! | granted | busy, skipped, lost, or failed and not carried out | that of the new shard, once the old row is released again |
//! | granted | outcome unknown, or the old row could not be released | outcome unknown: the engine releases the lease on both rows |
//!
//! A row that was passed on to a waiting lease gives it only half of the lock. So that is reported as a
//! release (see [`listen`](super::listen)): the waiting process asks, and finds the old row held by its own
//! lease.
//!
//! When a process dies that waits, the old row that it has must not stay busy for a whole ttl. So who would
//! wait takes the old row for a [`NEXT_TTL`] at most, as a successor does. Each ask keeps it for as long
//! again, and a grant of both rows lengthens it to the ttl.
//!
//! A lease is extended on both rows at once. It is lost if one row has lost it, and then it is released on
//! the other. It is released on the new row first, so who gets the old row gets the new one too, unless a
//! process has it that uses no other. A request that one row answers and the other does not is unanswered,
//! and the engine sends it again.
//!
//! **Tokens.** Each row computes its own, above all that it has given. The larger of both is given to the
//! owner, and the other row is raised to it, with the tokens that were to be kept free above it. So the next
//! token of either row is larger, whichever kind of process takes it.

mod answers;

use std::time::Duration;

use futures_util::future::{join, join3};
use tokio::time::sleep;

use self::answers::{common_token, granted, of_both, with_token};
use super::{Answer, Shard};
use dblock_core::store::{
    Acquire, Action, Extend, HandedOver, Kind, NEXT_TTL, Outcome, Request, StoreError, StoreErrorKind,
};

/// How often a row is asked that somebody else has locked for a moment, and the first pause, which gets
/// longer.
const TRIES: usize = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The two shards of a key.
pub(super) struct Moved<'s> {
    pub(super) old: &'s Shard,
    pub(super) new: &'s Shard,
}

/// A lease that both rows hold, and their tokens.
struct HeldOnBoth<'r> {
    /// The place of its request in the batch.
    at: usize,
    request: &'r Request,
    ask: &'r Acquire,
    token: i64,
    /// By how much its end is lengthened, from now.
    ttl: Duration,
    answer: Outcome,
}

impl Moved<'_> {
    pub(super) async fn apply(&self, requests: &[Request]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
        let of = |kind: Kind| -> (Vec<usize>, Vec<Request>) {
            let some = requests.iter().enumerate();
            let some = some.filter(|(_, request)| Kind::of(&request.action) == kind && !is_transfer(request));
            some.map(|(at, request)| (at, request.clone())).unzip()
        };
        let [acquires, extends, releases] = [Kind::Acquire, Kind::Extend, Kind::Release].map(of);
        let answered = join3(
            self.acquire(&acquires.1),
            self.extend(&extends.1),
            self.release(&releases.1),
        );
        let answered: [Vec<Answer>; 3] = answered.await.into();
        for ((places, _), answered) in [acquires, extends, releases].into_iter().zip(answered) {
            for (at, answer) in places.into_iter().zip(answered) {
                answers[at] = Some(answer);
            }
        }
        let missing = |request| {
            if is_transfer(request) {
                let message = "a key that moves to another shard cannot go into a ticket or out of one: do so when it has \
                               moved";
                return StoreError::new(StoreErrorKind::Unsupported, message);
            }
            unknown("a shard gave too few answers")
        };
        answers
            .into_iter()
            .zip(requests)
            .map(|(answer, request)| answer.unwrap_or_else(|| Err(missing(request))))
            .collect()
    }

    async fn extend(&self, requests: &[Request]) -> Vec<Answer> {
        let (old, new) = join(ask(self.old, requests), ask(self.new, requests)).await;
        let is_lost = |answer: &Answer| matches!(answer, Ok(Outcome::Lost));
        let answers = requests.iter().zip(old.iter().zip(&new));
        let half_lost = answers.filter(|(_, (old, new))| is_lost(old) != is_lost(new));
        let over: Vec<Request> = half_lost
            .map(|(request, _)| same_lease(request, Action::Release))
            .collect();
        // A lock that cannot be released ends with its ttl.
        join(insist(self.old, &over), insist(self.new, &over)).await;
        of_both(requests, old, new)
    }

    /// A caller that finds the old row free must find the new one free, too.
    async fn release(&self, requests: &[Request]) -> Vec<Answer> {
        let new = insist(self.new, requests).await;
        let old = insist(self.old, requests).await;
        of_both(requests, old, new)
    }

    async fn acquire(&self, requests: &[Request]) -> Vec<Answer> {
        let for_old: Vec<Request> = requests.iter().map(of_old).collect();
        let mut answers = ask(self.old, &for_old).await;
        let is_granted = |at: &usize| matches!(answers[*at], Ok(Outcome::Granted { .. }));
        let half: Vec<usize> = (0..requests.len()).filter(is_granted).collect();
        let asks: Vec<Request> = half.iter().map(|at| requests[*at].clone()).collect();
        let (mut undo, mut uneven, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for (at, new) in half.into_iter().zip(insist(self.new, &asks).await) {
            let request = &requests[at];
            let old = std::mem::replace(&mut answers[at], new);
            match (&request.action, old, &answers[at]) {
                (Action::Acquire(ask), Ok(old), Ok(new @ Outcome::Granted { .. })) => {
                    let ttl = if is_short(ask, &old) {
                        ask.ttl
                    } else {
                        Duration::ZERO
                    };
                    let (answer, tokens) = granted(old, new.clone());
                    match common_token(tokens, ask.spare_tokens) {
                        Some(token) if tokens == (token, token) && ttl.is_zero() => answers[at] = Ok(answer),
                        Some(token) => uneven.push(HeldOnBoth {
                            at,
                            request,
                            ask,
                            token,
                            ttl,
                            answer,
                        }),
                        // Both rows end with their ttl, and nobody can take them any more.
                        None => answers[at] = Err(used_up(request)),
                    }
                }
                (
                    Action::Acquire(ask),
                    Ok(Outcome::Granted { remaining, .. }),
                    Ok(Outcome::Queued { .. }),
                ) => {
                    let ttl = ask.ttl.min(NEXT_TTL);
                    if remaining < ttl / 2 {
                        waiting.push(same_lease(request, Action::Extend(Extend::new(1, ttl))));
                    }
                }
                (_, _, Err(error)) if error.is_outcome_unknown() => {}
                _ => undo.push(at),
            }
        }
        // The next ask finds out whether a row that was to be kept is lost.
        let (kept, raised, _) = join3(
            self.undo(&undo, requests),
            self.raise(&uneven),
            ask(self.old, &waiting),
        )
        .await;
        for (at, error) in kept {
            answers[at] = Err(error);
        }
        for (held, raised) in uneven.iter().zip(raised) {
            answers[held.at] = raised.map(|left| with_token(held.answer.clone(), held.token, left));
        }
        answers
    }

    /// Releases the old row of requests that did not get the new one. Returns those for which that is not
    /// certain.
    async fn undo(&self, places: &[usize], requests: &[Request]) -> Vec<(usize, StoreError)> {
        let releases: Vec<Request> = places
            .iter()
            .map(|at| same_lease(&requests[*at], Action::Release))
            .collect();
        let answers = insist(self.old, &releases).await;
        let uncertain = places
            .iter()
            .zip(answers)
            .filter_map(|(at, answer)| match answer {
                Ok(Outcome::Skipped) => Some((
                    *at,
                    unknown("the old shard's row is locked and could not be released"),
                )),
                Ok(_) => None,
                Err(error) => Some((
                    *at,
                    unknown("the old shard's row could not be released").with_source(error),
                )),
            });
        uncertain.collect()
    }

    /// Gives both rows the lease's token, and the ceiling above it. Returns how long each lease then still
    /// runs.
    async fn raise(&self, leases: &[HeldOnBoth<'_>]) -> Vec<Result<Duration, StoreError>> {
        let requests: Vec<Request> = leases.iter().map(HeldOnBoth::raise).collect();
        let answers = join(insist(self.old, &requests), insist(self.new, &requests)).await;
        answers
            .0
            .into_iter()
            .zip(answers.1)
            .map(|raised| match raised {
                (Ok(Outcome::Extended { remaining: old, .. }), Ok(Outcome::Extended { remaining, .. })) => {
                    Ok(remaining.min(old))
                }
                (Err(error), _) | (_, Err(error)) => Err(unknown(
                    "the fence tokens of a key that moves could not be raised",
                )
                .with_source(error)),
                _ => Err(unknown(
                    "the lease of a key that moves ended before its tokens were raised",
                )),
            })
            .collect()
    }
}

impl HeldOnBoth<'_> {
    fn raise(&self) -> Request {
        let mut extend = Extend::new(1, self.ttl);
        let holder = self.ask.holder.clone();
        extend.handed_over = Some(HandedOver::new(self.ask.owner, holder, self.token));
        same_lease(self.request, Action::Extend(extend))
    }
}

/// Its two rows would have to get one token, and nothing says yet that both have been passed on.
fn is_transfer(request: &Request) -> bool {
    matches!(request.action, Action::Transfer(_))
}

/// The request to the old row. An acquire that would wait for the new row takes the old one for a short time
/// only.
fn of_old(request: &Request) -> Request {
    let mut request = request.clone();
    if let Action::Acquire(ask) = &mut request.action
        && ask.queue.is_some()
    {
        ask.ttl = ask.ttl.min(NEXT_TTL);
    }
    request
}

/// Whether the old row was granted for a short time just now: a fresh lease is as long as was asked.
fn is_short(ask: &Acquire, old: &Outcome) -> bool {
    let fresh = matches!(old, Outcome::Granted { remaining, .. } if *remaining == NEXT_TTL);
    ask.queue.is_some() && ask.ttl > NEXT_TTL && fresh
}

/// Another request for the same lease.
fn same_lease(request: &Request, action: Action) -> Request {
    Request::new(request.key.clone(), request.lease_id, action)
}

async fn ask(shard: &Shard, requests: &[Request]) -> Vec<Answer> {
    if requests.is_empty() {
        return Vec::new();
    }
    shard.apply(requests).await
}

/// Asks again for rows that somebody else has locked for a moment, or because of whom the database undid the
/// request: nothing was carried out there.
async fn insist(shard: &Shard, requests: &[Request]) -> Vec<Answer> {
    let mut answers = ask(shard, requests).await;
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        let is_skipped = |at: &usize| match &answers[*at] {
            Ok(outcome) => *outcome == Outcome::Skipped,
            Err(error) => error.kind() == StoreErrorKind::Conflict,
        };
        let skipped: Vec<usize> = (0..requests.len()).filter(is_skipped).collect();
        if skipped.is_empty() {
            break;
        }
        sleep(pause).await;
        pause *= 4;
        let again: Vec<Request> = skipped.iter().map(|at| requests[*at].clone()).collect();
        for (at, answer) in skipped.into_iter().zip(ask(shard, &again).await) {
            answers[at] = answer;
        }
    }
    answers
}

fn unknown(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Interrupted, message)
}

fn used_up(request: &Request) -> StoreError {
    let message = format!(
        "the fence tokens of {:?} are used up: its rows must be deleted by hand",
        request.key
    );
    StoreError::new(StoreErrorKind::Other, message)
}
