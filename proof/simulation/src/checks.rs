//! Checks what must hold after each event.

use std::sync::Arc;

use dblock_core::LostReason;
use dblock_core::machine::env::Time;
use dblock_core::machine::ownership::Ownership;
use dblock_core::store::{Kind, Request};
use uuid::Uuid;

use crate::caller::State;
use crate::plan::MS;
use crate::sometimes::Sometimes;
use crate::world::World;

/// With less time left of a lease that was passed on, a caller must not enter without an extension.
const ENOUGH: u64 = 100 * MS;

/// Whether it ended before its owner left.
fn lost(own: &Ownership, now: Time) -> bool {
    !matches!(own.end_if_over(now).0, None | Some(LostReason::Released))
}

impl World {
    pub(crate) fn is_inside(&self, number: usize) -> bool {
        let caller = &self.callers[number];
        let alive = |own: &Ownership| own.deadline().is_some_and(|end| self.local(caller.process) < end);
        caller.state == State::Inside
            && !self.is_ending(number)
            && caller.ownership.as_deref().is_some_and(alive)
    }

    /// Another caller that holds the lock now, and must not.
    fn other_inside(&self, key: usize, lease: Uuid, own: Option<&Arc<Ownership>>) -> Option<usize> {
        let forced = |lease: &Uuid| self.checks.forced.contains(lease);
        if self.plan.faults.big_jumps || forced(&lease) {
            return None;
        }
        self.live.iter().copied().find(|number| {
            let caller = &self.callers[*number];
            let other = caller
                .ownership
                .as_ref()
                .filter(|other| own.is_none_or(|own| !Arc::ptr_eq(own, other)));
            let shares = |own: &Arc<Ownership>| own.call.options.limit.is_some();
            let both_share = own.is_some_and(shares) && other.is_some_and(shares);
            caller.key == key
                && !both_share
                && other.is_some_and(|own| !forced(&own.lease_id))
                && self.is_inside(*number)
                && !self.is_cut(*number)
        })
    }

    /// The caller shares its lock.
    fn shares(&self, number: usize) -> bool {
        let own = self.callers[number].ownership.as_ref();
        own.is_some_and(|own| own.call.options.limit.is_some())
    }

    /// A caller enters.
    pub(crate) fn check_entry(&mut self, process: usize, key: usize, number: usize, own: &Arc<Ownership>) {
        if let Some(other) = self.other_inside(key, own.lease_id, Some(own)) {
            self.fail(format!(
                "exclusion: callers {other} and {number} are inside {}",
                self.keys[key]
            ));
        }
        let (lease, token) = (own.lease_id, own.fence_token);
        self.check_limit(key, number, own);
        self.sees_entry(process, key, own.call.options.limit.is_some());
        let shares = own.call.options.limit.is_some();
        let excused = self.plan.faults.big_jumps || self.checks.forced.contains(&lease);
        if !excused && let Some(other) = self.other_taker(key, lease) {
            self.fail(format!(
                "exclusion: caller {number} enters while the transaction of caller {other} has taken the key"
            ));
        }
        let others = self
            .other_child(key, lease)
            .filter(|other| !(shares && self.shares(*other)));
        if !excused && let Some(other) = others {
            self.fail(format!(
                "exclusion: caller {number} enters beside the child of caller {other}"
            ));
        }
        if self.open_with(lease).is_some() {
            // Its token counts from the commit on.
            return;
        }
        let mut open = self.checks.transactions.iter();
        if open.any(|open| open.releases.is_some() && open.ownership.lease_id == lease) {
            // Another call in the transaction that keeps the lock.
            return;
        }
        let local = self.local(process);
        let forced = self.checks.forced.contains(&lease);
        let jumps = self.plan.faults.big_jumps;
        let checks = &self.checks.keys[key];
        let same_phase = shares && checks.phases.contains(&token);
        if checks.tokens.contains(&token) && !same_phase {
            self.fail(format!("token {token} is used twice"));
        } else if token < checks.newest_token && !forced && !jumps {
            self.fail(format!("token {token} comes after a larger one"));
        } else if !forced && !jumps && self.is_closed(key, lease) {
            self.fail(format!("caller {number} enters although hold_min is not over"));
        } else if !forced
            && !jumps
            && self
                .checks
                .transactions
                .iter()
                .any(|open| open.key == key && !Arc::ptr_eq(&open.ownership, own))
        {
            self.fail(format!(
                "caller {number} enters while another one's checked transaction is open"
            ));
        }
        let left = own
            .deadline()
            .map_or(0, |end| crate::plan::nanos(end.since(self.local(process))));
        if left < ENOUGH
            && self.plan.faults.clock_back == 0
            && self.checks.passed_on.contains(&lease)
            && own.max_hold_until.is_none()
        {
            self.fail(format!(
                "caller {number} enters with next to nothing left of what was passed on"
            ));
        }
        let checks = &mut self.checks.keys[key];
        let last = checks.last.replace(Arc::clone(own));
        if !shares && last.as_ref().is_some_and(|last| last.lease_id == lease) {
            self.came.note(Sometimes::HandedOver);
        }
        let revoked = last
            .as_ref()
            .is_some_and(|last| last.lease_id == lease && last.is_revoked());
        let was_lost = last.is_some_and(|last| last.lease_id == lease && !shares && lost(&last, local));
        checks.tokens.push(token);
        checks.phases.extend(shares.then_some(token));
        checks.newest_token = checks.newest_token.max(token);
        if revoked {
            self.fail(format!("caller {number} enters with a lease that was revoked"));
        } else if was_lost {
            self.fail(format!("caller {number} enters with a lease that was lost"));
        }
    }

    /// A caller with a limit enters: with it there are no more of those who have one than the largest of their limits.
    /// (One that takes the place of another in its process does not count anew those who came with a larger limit.)
    fn check_limit(&mut self, key: usize, number: usize, own: &Arc<Ownership>) {
        let mut limit = own.call.options.limit.unwrap_or(u32::MAX);
        let forced = |own: &Ownership| self.checks.forced.contains(&own.lease_id);
        if limit == u32::MAX || self.plan.faults.big_jumps || forced(own) {
            return;
        }
        let is_counted = |other: &&usize| {
            let caller = &self.callers[**other];
            let its = caller.ownership.as_ref();
            let has_limit = its.is_some_and(|its| {
                its.call.options.limit.is_some_and(|limit| limit < u32::MAX) && !forced(its)
            });
            caller.key == key && **other != number && has_limit && self.is_inside(**other)
        };
        let others: Vec<_> = self
            .live
            .iter()
            .copied()
            .filter(|other| is_counted(&other))
            .collect();
        let others_limits = others.iter().filter_map(|other| {
            let own = self.callers[*other].ownership.as_ref()?;
            own.call.options.limit
        });
        limit = limit.max(others_limits.max().unwrap_or(0));
        let others = others.len();
        if others > 0 && others + 1 == limit as usize {
            self.came.note(Sometimes::AtTheLimit);
        }
        if others >= limit as usize {
            self.fail(format!(
                "caller {number} enters with limit {limit} beside {others} others"
            ));
        }
    }

    /// `hold_min` keeps the key busy for other leases.
    fn is_closed(&self, key: usize, lease: Uuid) -> bool {
        self.checks.keys[key].closed.is_some_and(|(until, by)| {
            let stands = !self.checks.revoked.contains(&by) && !self.checks.forced.contains(&by);
            self.now < until && by != lease && stands
        })
    }

    // ── Takes ────────────────────────────────────────────────────────────────────────────────────────

    /// The work of a body that holds the lock is done, and others may see it.
    pub(crate) fn work_is_done(&mut self, number: usize) {
        let caller = &self.callers[number];
        let lease = caller.ownership.as_ref().map(|own| own.lease_id);
        let forced = lease.is_none_or(|lease| self.checks.forced.contains(&lease));
        if !forced && self.open_of(number).is_none() && self.is_inside(number) {
            let key = caller.key;
            self.checks.keys[key].works += 1;
        }
    }

    /// Another caller of the same process that has the key, or has its turn.
    fn other_here(&self, number: usize) -> Option<usize> {
        let (process, key) = (self.callers[number].process, self.callers[number].key);
        self.live.iter().copied().find(|other| {
            let caller = &self.callers[*other];
            let same = caller.process == process && caller.key == key && *other != number;
            same && (self.has_turn(*other) || self.is_inside(*other) && !self.is_cut(*other))
        })
    }

    /// A caller gets its turn.
    pub(crate) fn check_turn(&mut self, number: usize) {
        if let Some(other) = self.other_here(number) {
            self.fail(format!(
                "caller {number} gets a turn while caller {other} has the key or its turn"
            ));
        }
        let (process, key) = (self.callers[number].process, self.callers[number].key);
        if self.processes[process].cells[key].on_its_way {
            self.fail(format!(
                "caller {number} gets a turn while a request is on its way"
            ));
        }
    }

    /// A caller enters with its take.
    pub(crate) fn check_taken(&mut self, number: usize) {
        if let Some(other) = self.other_here(number) {
            self.fail(format!(
                "caller {number} enters with its take while caller {other} has the key or its turn"
            ));
        }
        if self.processes[self.callers[number].process].stopped {
            self.fail(format!("caller {number} enters with its take after the end"));
        }
    }

    /// The transaction of a caller has taken the key. `stale`: others have done their work since its snapshot.
    pub(crate) fn check_take(&mut self, number: usize, key: usize, lease: Uuid, stale: bool) {
        if let Some(other) = self.other_inside(key, lease, None) {
            self.fail(format!(
                "exclusion: caller {number} takes the key while {other} is inside"
            ));
        } else if let Some(other) = self.other_taker(key, lease) {
            self.fail(format!(
                "exclusion: callers {other} and {number} have taken the key"
            ));
        }
        if self.plan.faults.big_jumps {
            return;
        }
        if let Some(other) = self.other_child(key, lease) {
            self.fail(format!(
                "exclusion: caller {number} takes the key beside the child of caller {other}"
            ));
        } else if self.is_closed(key, lease) {
            self.fail(format!(
                "caller {number} takes the key although hold_min is not over"
            ));
        } else if stale {
            self.fail(format!(
                "caller {number} takes the key with a snapshot that is older than the row"
            ));
        }
    }

    /// Such a transaction has committed.
    pub(crate) fn check_take_committed(&mut self, number: usize, key: usize, token: i64) {
        let checks = &mut self.checks.keys[key];
        checks.works += 1;
        let newest = std::mem::replace(&mut checks.newest_token, token);
        checks.tokens.push(token);
        if token <= newest {
            self.fail(format!(
                "caller {number} commits with token {token} after token {newest}"
            ));
        }
    }

    /// A transaction that has taken the key is about to end.
    pub(crate) fn check_alone(&mut self, number: usize, key: usize) {
        let own = self.callers[number].ownership.as_ref();
        let alive = own.is_some_and(|own| own.deadline().is_some());
        if alive && self.checks.keys[key].runs.children.contains(&number) {
            self.fail(format!(
                "the transaction of caller {number} frees the key beside its child"
            ));
        }
    }

    /// A transaction was rolled back that has tried to take the key with this lease.
    pub(crate) fn check_rolled_back(&mut self, number: usize, key: usize, lease: Uuid) {
        if self.store.rows[key].committed.lease_id == lease {
            self.fail(format!(
                "the row names caller {number}, whose take was rolled back"
            ));
        }
    }

    /// A request is about to be sent.
    pub(crate) fn check_request(&mut self, process: usize, key: usize, request: &Request) {
        if self.processes[process].cells[key].on_its_way {
            self.fail(format!(
                "two requests of P{process} for {} are on their way",
                self.keys[key]
            ));
        }
        if Kind::of(&request.action) == Kind::Release {
            let lease = request.lease_id;
            let inside = self.live.iter().copied().find(|number| {
                let caller = &self.callers[*number];
                caller.process == process
                    && caller.ownership.as_ref().is_some_and(|own| own.lease_id == lease)
                    && self.is_inside(*number)
            });
            if let Some(number) = inside {
                self.fail(format!(
                    "the lease of caller {number}, who is inside, is released"
                ));
            }
        }
    }

    /// A lease was lost.
    pub(crate) fn check_loss(&mut self, own: &Ownership, reason: LostReason) {
        // A renewal may find the row that the outcome of a run has freed.
        let ended = self.live.iter().any(|number| {
            let its = self.callers[*number].ownership.as_deref();
            self.is_ending(*number) && its.is_some_and(|its| std::ptr::eq(its, own))
        });
        let parted = self
            .opens
            .iter()
            .any(|open| open.parted && open.lease_id == own.lease_id);
        let excused = !own.call.options.renew || own.call.options.max_hold.is_some() || ended || parted;
        if self.plan.healthy && !excused {
            self.fail(format!("a lease is lost ({reason}) although nothing fails"));
        }
    }

    pub(crate) fn check_loss_of_body(&mut self, number: usize) {
        if let Some(own) = self.callers[number].ownership.clone() {
            self.check_loss(&own, LostReason::Expired);
        }
    }

    // ── hold_min ─────────────────────────────────────────────────────────────────────────────────────

    /// A body is about to leave.
    pub(crate) fn check_leave(&mut self, number: usize) {
        if let Some(own) = &self.callers[number].ownership
            && own.hold_min_until.is_some()
        {
            self.checks.excused.push((own.lease_id, u64::MAX));
        }
        // With a child inside, the lock goes on, and may be lost.
        let key = self.callers[number].key;
        let parent = self.checks.keys[key].runs.children.contains(&number);
        self.callers[number].stood = self.is_inside(number) && !parent;
    }

    /// The end of its hold was confirmed.
    pub(crate) fn check_left(&mut self, number: usize, yes: bool) {
        let caller = &self.callers[number];
        let Some(own) = &caller.ownership else { return };
        if let Some(until) = own.hold_min_until
            && yes
            && caller.stood
        {
            let clock = self.processes[caller.process].clock;
            let ahead = crate::plan::nanos(until.since(clock.at(self.now)));
            // Minus the possible difference between clocks.
            let ahead = if self.plan.faults.clock_ahead > 0 {
                ahead.saturating_sub(150 * MS)
            } else {
                ahead
            };
            let until = self.now + ahead - ahead / 500;
            self.checks.keys[caller.key].closed = Some((until, own.lease_id));
        }
    }

    // ── Fence checks ─────────────────────────────────────────────────────────────────────────────────

    /// A fence check has passed.
    pub(crate) fn check_fence(&mut self, key: usize, number: usize, own: &Arc<Ownership>) {
        let token = own.fence_token;
        if token < self.checks.keys[key].newest_checked {
            self.fail(format!(
                "a fence check with token {token} passes after a larger one"
            ));
        }
        self.checks.keys[key].newest_checked = token;
        if let Some(other) = self.other_inside(key, own.lease_id, Some(own)) {
            self.fail(format!(
                "caller {number} passes a fence check while {other} is inside"
            ));
        }
    }

    /// A transaction commits because the row names its lease: no other owner may have entered since.
    pub(crate) fn check_commit(&mut self, number: usize, key: usize, own: &Arc<Ownership>) {
        let checks = &mut self.checks.keys[key];
        checks.works += 1;
        let newer = |last: &Arc<Ownership>| last.fence_token > own.fence_token;
        if checks.last.as_ref().is_some_and(newer) {
            self.fail(format!("caller {number} commits after another one has entered"));
        }
    }

    /// A fence check was refused although the row names the lease.
    pub(crate) fn check_refused_fence(&mut self, number: usize) {
        if self.is_inside(number) {
            self.fail(format!(
                "a fence check of caller {number} is refused although its lease stands"
            ));
        }
    }
}
