//! Requests for keys that move: each is held on two shards, the old one and the new one.
//!
//! Three kinds of processes meet on such a key. Those that do not know the new shards use its old row alone, those that move
//! it use both, and those that have the new shards only use its new row alone. The first and the last never run at the same
//! time. So whoever moves the key excludes both, if it has both rows. What each outcome means:
//!
//! | acquire at the old shard | at the new one | answer |
//! |---|---|---|
//! | not granted | is not asked | that of the old shard |
//! | granted | granted | `Granted`, once both rows have one token, above all earlier ones of both |
//! | granted | `Queued` | `Queued`; the old row stays held, so whoever waits with the same lease is next on both |
//! | granted | busy, skipped, lost, or failed and not carried out | that of the new shard, once the old row is released again |
//! | granted | outcome unknown, or the old row could not be released | outcome unknown: the engine releases the lease on both rows |
//!
//! A row that was passed on to a waiting lease gives it only half of the lock. So that is reported as a release (see
//! [`listen`](super::listen)): the waiting process asks, and finds the old row held by its own lease.
//!
//! A lease is extended and released on both rows at once. It is lost if one row has lost it. A request that one row answers
//! and the other does not is unanswered, and the engine sends it again.
//!
//! **Tokens.** Each row computes its own, above all that it has given. The larger of both is given to the owner, and the other
//! row is raised to it, with the tokens that were to be kept free above it. So the next token of either row is larger,
//! whichever kind of process takes it.

mod answers;

use std::time::Duration;

use futures_util::future::join;

use self::answers::{both, common_token, granted, with_token};
use super::{Answer, Shard};
use crate::store::{Acquire, Action, Extend, HandedOver, Outcome, Request, StoreError, StoreErrorKind};

/// How often a row is asked that somebody else has locked for a moment.
const TRIES: usize = 5;

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
    answer: Outcome,
}

impl Moved<'_> {
    pub(super) async fn apply(&self, requests: &[Request]) -> Vec<Answer> {
        let is_acquire = |at: &usize| matches!(requests[*at].action, Action::Acquire(_));
        let (acquires, others): (Vec<usize>, Vec<usize>) = (0..requests.len()).partition(is_acquire);
        let pick =
            |places: &[usize]| -> Vec<Request> { places.iter().map(|at| requests[*at].clone()).collect() };
        let (asks, rest) = (pick(&acquires), pick(&others));
        let (granted, answered) = join(self.acquire(&asks), self.on_both(&rest)).await;
        let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
        for (at, answer) in acquires
            .into_iter()
            .zip(granted)
            .chain(others.into_iter().zip(answered))
        {
            answers[at] = Some(answer);
        }
        let missing = || unknown("a shard gave too few answers");
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(missing())))
            .collect()
    }

    /// Extends and releases.
    async fn on_both(&self, requests: &[Request]) -> Vec<Answer> {
        let (old, new) = join(ask(self.old, requests), ask(self.new, requests)).await;
        requests
            .iter()
            .zip(old.into_iter().zip(new))
            .map(|(request, (old, new))| both(&request.action, old, new))
            .collect()
    }

    async fn acquire(&self, requests: &[Request]) -> Vec<Answer> {
        let mut answers = ask(self.old, requests).await;
        let is_granted = |at: &usize| matches!(answers[*at], Ok(Outcome::Granted { .. }));
        let half: Vec<usize> = (0..requests.len()).filter(is_granted).collect();
        let asks: Vec<Request> = half.iter().map(|at| requests[*at].clone()).collect();
        let (mut undo, mut uneven) = (Vec::new(), Vec::new());
        for (at, new) in half.into_iter().zip(insist(self.new, &asks).await) {
            let request = &requests[at];
            let old = std::mem::replace(&mut answers[at], new);
            match (&request.action, old, &answers[at]) {
                (Action::Acquire(ask), Ok(old), Ok(new @ Outcome::Granted { .. })) => {
                    let (answer, tokens) = granted(old, new.clone());
                    match common_token(tokens, ask.spare_tokens) {
                        Some(token) if tokens == (token, token) => answers[at] = Ok(answer),
                        Some(token) => uneven.push(HeldOnBoth {
                            at,
                            request,
                            ask,
                            token,
                            answer,
                        }),
                        // Both rows end with their ttl, and nobody can take them any more.
                        None => answers[at] = Err(used_up(request)),
                    }
                }
                (_, _, Ok(Outcome::Queued { .. })) => {}
                (_, _, Err(error)) if error.is_outcome_unknown() => {}
                _ => undo.push(at),
            }
        }
        let (kept, raised) = join(self.undo(&undo, requests), self.raise(&uneven)).await;
        for (at, error) in kept {
            answers[at] = Err(error);
        }
        for (held, raised) in uneven.iter().zip(raised) {
            answers[held.at] = raised.map(|()| with_token(held.answer.clone(), held.token));
        }
        answers
    }

    /// Releases the old row of requests that did not get the new one. Returns those for which that is not
    /// certain.
    async fn undo(&self, places: &[usize], requests: &[Request]) -> Vec<(usize, StoreError)> {
        let release =
            |at: &usize| Request::new(requests[*at].key.clone(), requests[*at].lease_id, Action::Release);
        let releases: Vec<Request> = places.iter().map(release).collect();
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

    /// Gives both rows the lease's token, and the ceiling above it.
    async fn raise(&self, leases: &[HeldOnBoth<'_>]) -> Vec<Result<(), StoreError>> {
        let requests: Vec<Request> = leases.iter().map(HeldOnBoth::raise).collect();
        let answers = join(insist(self.old, &requests), insist(self.new, &requests)).await;
        answers
            .0
            .into_iter()
            .zip(answers.1)
            .map(|raised| match raised {
                (Ok(Outcome::Extended { .. }), Ok(Outcome::Extended { .. })) => Ok(()),
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
    /// An extend that leaves the lease's end alone.
    fn raise(&self) -> Request {
        let mut extend = Extend::new(1, Duration::ZERO);
        let holder = self.ask.holder.clone();
        extend.handed_over = Some(HandedOver::new(self.ask.owner, holder, self.token));
        Request::new(
            self.request.key.clone(),
            self.request.lease_id,
            Action::Extend(extend),
        )
    }
}

async fn ask(shard: &Shard, requests: &[Request]) -> Vec<Answer> {
    if requests.is_empty() {
        return Vec::new();
    }
    shard.apply(requests).await
}

/// Asks again for rows that somebody else has locked for a moment, or because of whom the database undid the request: nothing
/// was carried out there.
async fn insist(shard: &Shard, requests: &[Request]) -> Vec<Answer> {
    let mut answers = ask(shard, requests).await;
    for _ in 1..TRIES {
        let is_skipped = |at: &usize| match &answers[*at] {
            Ok(outcome) => *outcome == Outcome::Skipped,
            Err(error) => error.kind() == StoreErrorKind::Conflict,
        };
        let skipped: Vec<usize> = (0..requests.len()).filter(is_skipped).collect();
        if skipped.is_empty() {
            break;
        }
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
