//! Takes single rules of the row away, by what goes into dblock's own rules and what comes out.

use std::time::Duration;

use dblock_core::LockRow;
use dblock_core::store;
use uuid::Uuid;

use super::{Action, Request, Row, Store, Time, Token, moment};
use crate::guards::Guard;

impl Store {
    /// Without a guard: shows the rules another row or request than there is.
    pub(super) fn weaken(
        self,
        before: &Row,
        now: Time,
        request: Request,
        real: &mut LockRow,
        asked: &mut store::Request,
    ) {
        let without = |guard| !self.guards.has(guard);
        let its_own = before.lease == request.lease;
        let alive = moment(now) + Duration::from_micros(1);
        match request.action {
            Action::Acquire { .. } if its_own => {
                if (before.count == 0 && without(Guard::FreeRowRefusesItsLease))
                    || (before.is_held(now) && without(Guard::RepeatedAcquireIsSameGrant))
                {
                    real.lease_id = Uuid::nil();
                }
            }
            Action::Extend { .. } => {
                if without(Guard::ExtendChecksLease) {
                    asked.lease_id = real.lease_id;
                }
                if without(Guard::ExtendChecksExpiry) {
                    real.expire_at = real.expire_at.max(alive);
                }
                if without(Guard::ExtendKeepsLaterToken) {
                    real.fence_token = 0;
                }
            }
            Action::Release { .. } => {
                let same_process = before.lease.process == request.lease.process;
                if without(Guard::ReleaseChecksLease) && same_process {
                    asked.lease_id = real.lease_id;
                }
                if without(Guard::ReleaseChecksExpiry) {
                    real.expire_at = real.expire_at.max(alive);
                }
                if let Some(next) = &mut real.next
                    && without(Guard::PassOnToLiveOnly)
                {
                    next.until = next.until.max(alive);
                }
            }
            Action::Acquire { .. } => {}
        }
        if without(Guard::TokenAboveCeiling) {
            real.fence_ceiling = 0;
        }
    }

    /// Without a guard: puts back what the rules changed.
    pub(super) fn weaken_after(self, before: Option<Row>, request: Request, after: &mut Row) {
        let without = |guard| !self.guards.has(guard);
        if let Some(before) = before.filter(|_| after.lease.number == 0) {
            after.lease = before.lease;
        }
        let kept = |row: &Row| row.lease == after.lease && row.token == after.token;
        let extended = matches!(request.action, Action::Extend { .. });
        if extended || before.as_ref().is_some_and(kept) {
            if let Some(before) = before.filter(|_| without(Guard::TokenAboveCeiling)) {
                after.ceiling = before.ceiling;
            }
        } else {
            if without(Guard::TokenFromClock) {
                let token = before.map_or(0, |row| row.ceiling.0) + 1;
                (after.token, after.ceiling) = (Token(token), Token(token + i64::from(self.spare)));
            }
            if without(Guard::GrantClearsSuccessor) {
                after.next = before.and_then(|row| row.next);
            }
        }
        if let Some(before) = before.filter(|_| without(Guard::AbsoluteCounts))
            && let Action::Extend { change, .. } | Action::Release { change } = request.action
        {
            after.count = before.count.saturating_add_signed(change);
        }
    }
}
