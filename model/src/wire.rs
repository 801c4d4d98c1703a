//! Requests between a process and the store. Each may be carried out late, twice or never, and its answer
//! may be late or lost.

use crate::history::Turn;
use crate::store::{Outcome, Request, Time};

/// The one request that a process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Asked {
    /// What was sent.
    pub request: Request,
    /// When, on the process' clock.
    pub sent_at: Time,
    /// The answer on its way back, once the request was carried out.
    pub answer: Option<Outcome>,
    /// The turn of the lease that was granted. History only.
    pub turn: Turn,
}

impl Asked {
    /// A request that was sent now.
    pub fn new(request: Request, sent_at: Time) -> Self {
        Self {
            request,
            sent_at,
            answer: None,
            turn: 0,
        }
    }
}

/// What becomes of a request that its process no longer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The store may still carry it out. Its answer reaches nobody.
    Late,
    /// It never arrives. If it was carried out already, its answer is lost.
    Lost,
}

/// Requests that the store may still carry out although nobody waits for the answer: their process gave up
/// the connection or died, or the network made a copy. They may overtake each other. At most `MOST` are kept;
/// one more is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Late<const MOST: usize>(Vec<Request>);

impl<const MOST: usize> Late<MOST> {
    /// Whether one more is kept.
    pub fn has_room(&self) -> bool {
        self.0.len() < MOST
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps one more.
    pub fn push(&mut self, request: Request) {
        self.0.push(request);
        self.0.sort_unstable();
    }

    /// Takes the request at `index` out.
    pub fn take(&mut self, index: usize) -> Request {
        self.0.remove(index)
    }

    /// Each different request, with its index.
    pub fn each(&self) -> impl Iterator<Item = (usize, Request)> {
        let fresh = |index: usize| index == 0 || self.0[index - 1] != self.0[index];
        (0..self.0.len())
            .filter(move |index| fresh(*index))
            .map(|index| (index, self.0[index]))
    }

    /// What becomes of `asked` when nobody waits for its answer. A request that never arrives is one that
    /// stays late, so it is lost only where there is no room.
    pub fn fate(&self, asked: &Asked) -> Fate {
        if asked.answer.is_none() && self.has_room() {
            Fate::Late
        } else {
            Fate::Lost
        }
    }

    /// Nobody waits for `asked` any more.
    pub fn abandon(&mut self, asked: &Asked) {
        if self.fate(asked) == Fate::Late {
            self.push(asked.request);
        }
    }
}

/// When a lease ends for its process, counted from `since`.
pub fn local_deadline(since: Time, remaining: Time, margin: Time) -> Time {
    (since + remaining).saturating_sub(margin)
}
