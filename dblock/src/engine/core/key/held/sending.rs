//! The requests for the lease, and when each is sent.

use std::sync::Arc;
use std::time::Duration;

use super::{Held, Holds, InRow, State, Times};
use crate::engine::core::flaw::{Flaw, flawed};
use crate::engine::core::time::{Time, on_any_clock};
use crate::store::{Action, Extend, HandedOver};

/// Time that a lease still has in the store when `hold_min` is over and its row is released. With less it
/// could expire first, and the next owner would take it for the lease of a process that died. (After a
/// shutdown it does expire.)
const TO_RELEASE_IN: Duration = Duration::from_secs(1);

impl<C> Held<C> {
    /// When to look again without an event. `asked`: a request is on its way.
    pub(crate) fn next_look(&self, now: Time, asked: bool) -> Option<Time> {
        let end = match self.state {
            State::Held(_) => self.current.deadline(),
            State::Lingering { until, .. } => Some(until),
            _ => self.times().map(|times| times.over_at),
        };
        let send_at = match self.state {
            _ if asked => None,
            State::Held(_) => {
                // The reason for a retry may be gone. Then the next renewal is what is due.
                let due = self.renew_at().into_iter().chain(self.follow_at).min();
                self.retry_at.filter(|at| *at > now).or(due)
            }
            _ => self.retry_at,
        };
        let times = self.confirmations.due.into_iter().chain(end);
        times.chain(send_at.filter(|at| *at > now)).min()
    }

    /// When the lease is extended next: when less than two thirds of its ttl are confirmed. The time is moved
    /// earlier, onto a grid, so that leases of one ttl fall due together and are renewed by one statement.
    ///
    /// The store does not lengthen a revoked lease. It is asked as often, because its answer shows whether the
    /// key was freed by force since.
    fn renew_at(&self) -> Option<Time> {
        let times = self.times()?;
        if !self.current.call.options.renew || flawed(Flaw::NothingIsRenewed) {
            return None;
        }
        let until = if self.current.is_revoked() {
            times.since + self.ttl
        } else {
            times.confirmed_until(self.ttl)
        };
        let due = until.before(self.ttl * 2 / 3).as_nanos();
        let grid = u64::try_from((self.ttl / 16).as_nanos())
            .unwrap_or(u64::MAX)
            .max(1);
        Some(Time::from_nanos(due - due % grid))
    }

    /// The latest time for a renewal to be sent.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn must_send_by(&self) -> Option<Time> {
        let due = self.renew_at().filter(|_| self.is_held())?;
        Some(self.retry_at.map_or(due, |retry_at| retry_at.max(due)))
    }

    /// How late the renewal that is due now is.
    pub(crate) fn renewal_lag(&self, now: Time) -> Option<Duration> {
        let planned = self.renew_at()?;
        (planned <= now).then(|| now.since(planned))
    }

    /// Whether the row stays busy until then without a request. Stores count in µs or in ms.
    pub(super) fn covers(&self, until: Time) -> bool {
        let is_covered = |times: &Times| until <= times.store_end + Duration::from_millis(1);
        self.times().is_some_and(is_covered)
    }

    /// The request to send now, if any.
    pub(crate) fn next_action(&self, now: Time) -> Option<Action> {
        if self.retry_at.is_some_and(|retry_at| now < retry_at) {
            return None;
        }
        match self.state {
            State::Held(_) if self.is_in_transaction() => None,
            State::Held(Holds { count, .. }) => {
                let due = self.confirmations.want_request()
                    || self.row.holds != count
                    || self.follow_at.is_some_and(|follow_at| follow_at <= now)
                    || self.renew_at().is_some_and(|renew_at| renew_at <= now);
                due.then(|| self.extend(count, self.ttl))
            }
            State::Lost(_) => None,
            State::Lingering { until, written } => {
                let missing = !written && !self.current.is_revoked();
                let ttl = on_any_clock(until.since(now)) + TO_RELEASE_IN;
                missing.then(|| self.extend(0, ttl))
            }
            State::ReleaseDue | State::Releasing { .. } => Some(Action::Release),
        }
    }

    /// Time limit of the store for a request: an extension that hangs must leave time to be sent again.
    pub(crate) fn time_limit(&self, now: Time) -> Option<Duration> {
        let times = self.times()?;
        let end = match self.state {
            State::Held(_) => times.confirmed_until(self.ttl),
            State::Lingering { .. } => times.store_end,
            _ => return None,
        };
        Some(end.since(now) * 2 / 3)
    }

    fn extend(&self, count: u32, ttl: Duration) -> Action {
        let mut extend = Extend::new(count, ttl);
        extend.handed_over = self.row_is_behind().then(|| HandedOver {
            owner: self.current.call.owner,
            holder: Arc::clone(&self.current.call.holder),
            fence_token: self.current.fence_token,
        });
        Action::Extend(extend)
    }

    /// `action`, from [`next_action`](Self::next_action), is being sent.
    pub(crate) fn sent(&mut self, action: &Action) {
        self.retry_at = None;
        self.follow_at = None;
        self.confirmations.sent();
        if let Action::Extend(extend) = action {
            self.row_sent = InRow {
                fence_token: self.current.fence_token,
                holds: extend.count,
                owner: Some(self.current.call.owner),
            };
        } else {
            // The transaction may have carried out the release.
            let unsure = self.is_in_transaction() || matches!(self.state, State::Releasing { unsure: true });
            self.state = State::Releasing { unsure };
        }
    }
}
