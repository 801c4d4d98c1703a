//! The grant that this process has on a key, seen by the engine: what its row says, and what must be
//! written next.
//!
//! Owners may hand the lock on at any time without the engine. So it works on what it saw last, read together.
//! Once it has seen no hold, only the engine itself lets somebody in, and not after it has begun to release.

mod settling;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::EngineHandle;
use super::batch::Kind;
use super::grant::{self, Grant, Snapshot};
use super::terms::LeaseTerms;
use super::waiter::Syncer;
use crate::error::LostReason;
use crate::store::{Action, Extend, HandedOver, StoreError};

pub(super) use settling::Settled;

/// Pause before a row that was locked by somebody is asked again; doubles up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// What the lease of a row that `hold_min` keeps busy has left when it is to be released. With less it would expire
/// instead, and whoever comes next would take it for the lease of a process that died. After a shutdown it does.
const TO_RELEASE_IN: Duration = Duration::from_secs(1);
/// How many times slower than the store's clock ours may be at most: less than one second in this many.
const CLOCKS_AGREE: u32 = 1000;

/// How far the row may be behind after a hand-over.
const ROW_FOLLOWS_WITHIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Holding {
    pub(super) grant: Arc<Grant>,
    /// As it was when [`refresh`](Self::refresh) looked last.
    seen: Snapshot,
    first_token: i64,
    /// Whom the row names, `None` for an earlier lease's owner, and the number of holds that it has.
    row: Option<Arc<LeaseTerms>>,
    row_count: u32,
    /// Whom the request on its way names.
    sent_terms: Arc<LeaseTerms>,
    /// When the row is brought up to date after a hand-over.
    follow_at: Option<Instant>,
    /// Nothing is sent before this.
    retry_at: Option<Instant>,
    pause: Duration,
    trouble: Option<StoreError>,
    /// What the log says of it.
    trouble_told: Option<Kind>,
    /// Callers whose change the next request will carry, and those whose change is on its way.
    waiting: Vec<Syncer>,
    sent: Vec<Syncer>,
    /// An extension was sent and its reply was lost: the row may be busy for longer than the lease knows.
    extend_unsure: bool,
    release: Release,
}

/// How far the release of a grant has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Release {
    /// Sent when everyone has left.
    Due,
    /// Nobody is let in any more.
    Sent,
    /// A reply was lost: it may have been carried out.
    Unsure,
}

impl Holding {
    pub(super) fn new(grant: Arc<Grant>) -> Self {
        let seen = grant.look(Instant::now());
        Self {
            first_token: seen.terms.fence_token,
            row: Some(Arc::clone(&seen.terms)),
            row_count: 1,
            sent_terms: Arc::clone(&seen.terms),
            seen,
            follow_at: None,
            retry_at: None,
            pause: FIRST_RETRY,
            trouble: None,
            trouble_told: None,
            waiting: Vec::new(),
            sent: Vec::new(),
            extend_unsure: false,
            release: Release::Due,
            grant,
        }
    }

    /// Looks who is inside.
    pub(super) fn refresh(&mut self, now: Instant) {
        let was_left = self.is_left();
        self.seen = self.grant.look(now);
        if self.is_left() && !was_left && self.trouble.is_none() {
            // A row that was locked when it was to be extended may be free for the release.
            self.retry_at = None;
            self.pause = FIRST_RETRY;
        }
        if self.row_is_behind() && self.follow_at.is_none() {
            self.follow_at = Some(now + ROW_FOLLOWS_WITHIN);
        }
    }

    pub(super) fn seen(&self) -> &Snapshot {
        &self.seen
    }

    /// Of the owner inside.
    pub(super) fn terms(&self) -> &LeaseTerms {
        &self.seen.terms
    }

    /// How often the lock was handed over.
    pub(super) fn hand_overs(&self) -> u32 {
        u32::try_from(self.seen.terms.fence_token - self.first_token).unwrap_or(u32::MAX)
    }

    /// Everyone has left.
    pub(super) fn is_left(&self) -> bool {
        self.seen.holds == 0
    }

    fn row_is_behind(&self) -> bool {
        !matches!(&self.row, Some(row) if Arc::ptr_eq(row, &self.seen.terms))
    }

    /// When the lease is extended next: when less than two thirds of its ttl are confirmed, put earlier onto
    /// a grid so that leases of one ttl fall due together and are renewed by one statement.
    fn renew_at(&self) -> Option<Instant> {
        let ttl = self.seen.terms.ttl;
        if !self.seen.terms.renew || self.grant.is_revoked() || self.seen.has_ended() {
            return None;
        }
        let end = self.seen.store_end;
        let due = end.checked_sub(ttl * 2 / 3).unwrap_or(end);
        let grid = (ttl / 16).as_nanos().max(1);
        let past_grid = due.saturating_duration_since(epoch()).as_nanos() % grid;
        Some(due - Duration::from_nanos(u64::try_from(past_grid).unwrap_or(0)))
    }

    /// Notes that the holds have changed. `syncer` is told when the row says so.
    pub(super) fn note_holds(&mut self, syncer: Option<Syncer>) {
        match syncer {
            Some(syncer) if !syncer.trusts_memory() && !self.row_is_behind() => syncer.done(),
            syncer => self.waiting.extend(syncer),
        }
    }

    /// Answers callers whose time is over, and everyone when the lease has ended.
    pub(super) fn expire(&mut self, now: Instant) {
        let (terms, reason) = (&self.seen.terms, self.seen.reason);
        let ended = reason.is_some();
        for list in [&mut self.waiting, &mut self.sent] {
            // Who left in time has not lost the lease, however long the store takes to hear of it.
            let lost = ended && self.seen.holds > 0;
            for syncer in list.extract_if(.., |syncer| lost || syncer.deadline() <= now) {
                if lost {
                    syncer.lost(terms, reason);
                } else {
                    syncer.give_up(&terms.key, self.trouble.clone());
                }
            }
        }
    }

    /// The store's lease has surely ended and nothing can be done for it any more.
    pub(super) fn is_past(&self, now: Instant) -> bool {
        self.seen.has_ended() && now >= self.seen.store_end
    }

    /// A request whose outcome nobody knows may have extended the row, for longer than anybody wants.
    pub(super) fn is_unsure(&self) -> bool {
        self.extend_unsure
    }

    /// How far the renewal that is due is behind its plan.
    pub(super) fn renewal_lag(&self, now: Instant) -> Option<Duration> {
        self.renew_at()
            .and_then(|planned| now.checked_duration_since(planned))
    }

    /// Everyone has left, and `hold_min` is not over.
    pub(super) fn lingers(&self, now: Instant) -> bool {
        self.is_left() && self.lingers_until(now).is_some()
    }

    /// The same, and the row stays busy for as long by itself.
    pub(super) fn lingers_by_itself(&self, now: Instant) -> bool {
        self.is_left() && self.lingers_until(now).is_some_and(|until| self.covers(until))
    }

    /// The row is busy until then by itself. Stores count in µs, or in ms.
    fn covers(&self, until: Instant) -> bool {
        until <= self.seen.store_end + Duration::from_millis(1)
    }

    /// Somebody is inside, perhaps still although the lease has ended, or `hold_min` keeps the row busy.
    pub(super) fn is_occupied(&self, now: Instant) -> bool {
        !self.is_left() || self.lingers_until(now).is_some()
    }

    /// Why the last request failed, if it did.
    pub(super) fn trouble(&self) -> Option<&StoreError> {
        self.trouble.as_ref()
    }

    /// `hold_min` keeps the row busy although everyone has left.
    fn lingers_until(&self, now: Instant) -> Option<Instant> {
        let until = self.seen.terms.hold_min_until?;
        // The local deadline is for bodies; the row is busy until its own end.
        let stands = matches!(
            self.seen.reason,
            None | Some(LostReason::Expired | LostReason::MaxHold)
        );
        (now < until && stands).then_some(until)
    }

    /// What to send now, if anything.
    pub(super) fn next_action(&mut self, now: Instant) -> Option<Action> {
        if self.retry_at.is_some_and(|retry_at| retry_at <= now) {
            self.retry_at = None;
        }
        let may_send = self.retry_at.is_none();
        let holds = self.seen.holds;
        let ended = self.seen.has_ended();
        if let Some(until) = self.lingers_until(now).filter(|_| holds == 0) {
            // The callers need not wait for that.
            self.waiting.drain(..).for_each(Syncer::done);
            let may_extend = self.seen.reason != Some(LostReason::Expired) && !self.grant.is_revoked();
            let missing = !self.covers(until + TO_RELEASE_IN / 2) && may_extend;
            let left = until - now;
            let ttl = left + left / CLOCKS_AGREE + TO_RELEASE_IN;
            return (missing && may_send).then(|| self.extend(1, ttl));
        }
        if !may_send {
            return None;
        }
        if holds == 0 {
            return Some(Action::Release);
        }
        let due = !self.waiting.is_empty()
            || self.row_count != holds
            || self.follow_at.is_some_and(|follow_at| follow_at <= now)
            || self.renew_at().is_some_and(|renew_at| renew_at <= now);
        (due && !ended).then(|| self.extend(holds, self.seen.terms.ttl))
    }

    fn extend(&self, count: u32, ttl: Duration) -> Action {
        let mut extend = Extend::new(count, ttl);
        extend.handed_over = self.handed_over();
        Action::Extend(extend)
    }

    /// Whom the row must name, if it does not.
    fn handed_over(&self) -> Option<HandedOver> {
        self.row_is_behind().then(|| HandedOver {
            owner: self.seen.terms.owner,
            holder: Arc::clone(&self.seen.terms.holder),
            fence_token: self.seen.terms.fence_token,
        })
    }

    /// Everyone has left, and the row need not hear of it if somebody else comes in.
    pub(super) fn can_be_handed_over(&self) -> bool {
        self.is_left() && self.release == Release::Due
    }

    /// Lets the next in line in, if the lock may go on without the store.
    pub(super) fn hand_over(&mut self, engine: &EngineHandle, now: Instant) {
        if self.grant.let_next_in(engine, now) == grant::Left::HandedOver {
            self.waiting.drain(..).for_each(Syncer::done);
            self.refresh(now);
        }
    }

    /// `action`, of [`next_action`](Self::next_action), is on its way.
    pub(super) fn sent(&mut self, action: &Action) {
        if matches!(action, Action::Release) {
            self.release = self.release.max(Release::Sent);
        }
        self.retry_at = None;
        self.follow_at = None;
        self.sent_terms = Arc::clone(&self.seen.terms);
        self.grant.row_follows();
        self.sent.append(&mut self.waiting);
    }

    /// When to look again without an event. `asked`: a request is on its way.
    pub(super) fn next_look(&self, now: Instant, asked: bool) -> Instant {
        let deadlines = self.waiting.iter().chain(&self.sent).map(Syncer::deadline);
        let ended = self.seen.has_ended();
        let end = if ended {
            self.seen.store_end
        } else {
            self.seen.deadline
        };
        let send_at = if asked {
            None
        } else if self.is_left() {
            self.lingers_until(now).into_iter().chain(self.retry_at).min()
        } else {
            let due = self.renew_at().into_iter().chain(self.follow_at).min();
            self.retry_at.or(due.filter(|_| !ended))
        };
        deadlines
            .chain(send_at.filter(|at| *at > now))
            .fold(end, Instant::min)
    }
}

/// The origin of the renewal grid.
fn epoch() -> Instant {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}
