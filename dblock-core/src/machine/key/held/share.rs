//! A lease that is shared: several owners of this process have it at once.
//!
//! The row counts them. While the stretch of local hand-overs goes on, an owner enters without the store: in the place
//! of one that has left and that the row still counts, or beside the others if it has no limit. Else the store is asked
//! whether there is room.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::{Held, Holds, ROW_FOLLOWS_WITHIN, State, ended_reason};
use crate::error::LostReason;
use crate::key::Key;
use crate::machine::call::Call;
use crate::machine::env::Time;
use crate::machine::key::NotQuiet;
use crate::machine::key::queue::{WANTED_FOR, WaitQueue};
use crate::machine::out::{Note, Waiter};
use crate::machine::ownership::Ownership;
use crate::options::{self, LockOptions, NO_LIMIT};
use crate::store::Enter;

/// Those who share the lease.
#[derive(Debug)]
pub(super) struct Group {
    /// By their seats.
    members: Slab<Member>,
    /// The ends that no renewal moves.
    own_ends: BTreeSet<(Time, usize)>,
    /// How many have no such end.
    endless: u32,
    /// When all of them end unless the lease is extended.
    deadline: Time,
    /// The largest of their limits.
    limit: u32,
    /// For how many callers with which limit the store has just made room.
    room: u32,
    room_limit: u32,
    /// The number of the last extension.
    pub(super) number: u64,
}

#[derive(Debug)]
struct Member {
    ownership: Arc<Ownership>,
    holds: u32,
    /// The end that no renewal moves.
    own_end: Option<Time>,
}

impl Group {
    pub(super) fn new(first: &Arc<Ownership>, deadline: Time) -> Self {
        let mut group = Self {
            members: Slab::new(),
            own_ends: BTreeSet::new(),
            endless: 0,
            deadline,
            limit: 0,
            room: 0,
            room_limit: NO_LIMIT,
            number: 0,
        };
        let not_renewed = (!first.call.options.renew).then_some(deadline);
        group.add(Arc::clone(first), not_renewed);
        group
    }

    /// `not_renewed`: when it ends if it does not want its lease renewed.
    fn add(&mut self, ownership: Arc<Ownership>, not_renewed: Option<Time>) {
        let seat = ownership.seat;
        let own_end = own_end(&ownership, not_renewed);
        self.own_ends.extend(own_end.map(|end| (end, seat)));
        self.endless += u32::from(own_end.is_none());
        self.limit = self.limit.max(ownership.call.options.limit.unwrap_or(NO_LIMIT));
        let member = Member {
            ownership,
            holds: 1,
            own_end,
        };
        self.members.insert(member);
    }

    fn get(&self, ownership: &Arc<Ownership>) -> Option<&Member> {
        let member = self.members.get(ownership.seat)?;
        Arc::ptr_eq(&member.ownership, ownership).then_some(member)
    }

    fn get_mut(&mut self, ownership: &Arc<Ownership>) -> Option<&mut Member> {
        let member = self.members.get_mut(ownership.seat)?;
        Arc::ptr_eq(&member.ownership, ownership).then_some(member)
    }

    fn remove(&mut self, ownership: &Arc<Ownership>) {
        let seat = ownership.seat;
        match self.members.try_remove(seat).map(|member| member.own_end) {
            Some(Some(end)) => drop(self.own_ends.remove(&(end, seat))),
            Some(None) => self.endless -= 1,
            None => {}
        }
    }

    /// The owner has this ttl from now on. Without renewal that sets its end.
    pub(super) fn set_ttl(&mut self, ownership: &Arc<Ownership>, ttl: Duration, now: Time) {
        let seat = ownership.seat;
        let Some(member) = self.get_mut(ownership) else {
            return;
        };
        let after = own_end(ownership, not_renewed(ownership.call.options.renew, ttl, now));
        let before = std::mem::replace(&mut member.own_end, after);
        if let Some(before) = before {
            self.own_ends.remove(&(before, seat));
        }
        self.own_ends.extend(after.map(|end| (end, seat)));
    }

    pub(super) fn has(&self, ownership: &Arc<Ownership>) -> bool {
        self.get(ownership).is_some()
    }

    pub(super) fn owners(&self) -> impl Iterator<Item = &Arc<Ownership>> {
        self.members.iter().map(|(_, member)| &member.ownership)
    }

    /// One that has not ended, if there is one.
    pub(super) fn one_inside(&self) -> Option<&Arc<Ownership>> {
        let living = self.owners().find(|owner| owner.ended().is_none());
        living.or_else(|| self.owners().next())
    }

    /// When the first of them ends unless the lease is extended.
    pub(super) fn first_end(&self) -> Time {
        let own = self.own_ends.first().map(|(end, _)| *end);
        own.map_or(self.deadline, |own| own.min(self.deadline))
    }

    /// Somebody may be inside for longer than the lease lasts by now.
    pub(super) fn is_renewed(&self) -> bool {
        let longer = |(end, _): &(Time, usize)| *end > self.deadline;
        self.endless > 0 || self.own_ends.last().is_some_and(longer)
    }

    /// The lease was extended.
    pub(super) fn move_deadline(&mut self, deadline: Time, now: Time) {
        self.deadline = self.deadline.max(deadline);
        for (_, member) in &self.members {
            let deadline = member.own_end.map_or(deadline, |end| end.min(deadline));
            member.ownership.move_deadline(deadline, now);
        }
    }

    /// An extension is sent, which gives back the room that nobody has taken.
    pub(super) fn sent(&mut self, number: u64) {
        (self.number, self.room) = (number, 0);
    }

    /// The store has answered that it counts `count` of them; `inside` were inside when it was asked.
    pub(super) fn counted(&mut self, count: u32, inside: u32, enter: Option<Enter>) {
        (self.room, self.room_limit) = match enter {
            Some(enter) => (count.saturating_sub(inside), enter.limit),
            None => (0, NO_LIMIT),
        };
    }

    /// Ends those whose time is over. Returns the reason if all of them have ended.
    pub(super) fn end_overdue(&mut self, now: Time, notes: &mut Vec<Note>) -> Option<LostReason> {
        if now < self.first_end() {
            return None;
        }
        while self.own_ends.first().is_some_and(|(end, _)| *end <= now)
            && let Some((_, seat)) = self.own_ends.pop_first()
        {
            if let Some(member) = self.members.get(seat) {
                end_if_over(&member.ownership, now, notes);
            }
        }
        if now >= self.deadline {
            self.owners().for_each(|owner| end_if_over(owner, now, notes));
        }
        let reasons: Option<Vec<_>> = self.owners().map(|owner| owner.ended()).collect();
        reasons?.pop()
    }
}

/// When an owner ends, whatever is renewed.
fn own_end(owner: &Ownership, not_renewed: Option<Time>) -> Option<Time> {
    owner.max_hold_until.into_iter().chain(not_renewed).min()
}

/// When a call ends that does not want its lease renewed.
fn not_renewed(renew: bool, ttl: Duration, since: Time) -> Option<Time> {
    (!renew).then(|| (since + ttl).before(options::margin(ttl)))
}

fn end_if_over(owner: &Arc<Ownership>, now: Time, notes: &mut Vec<Note>) {
    if let (Some(reason), true) = owner.end_if_over(now) {
        notes.push(Note::Lost(Arc::clone(owner), reason));
    }
}

impl<C> Held<C> {
    /// Several owners may have it.
    pub(crate) fn is_shared(&self) -> bool {
        self.group.is_some()
    }

    /// How many owners have it.
    pub(super) fn inside(&self) -> u32 {
        match self.state {
            State::Held(holds) | State::Lost(holds) => holds.count,
            _ => 0,
        }
    }

    /// The store has made room for callers that may not have entered yet.
    pub(crate) fn has_room(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.room > 0)
    }

    /// Adds a hold of one of those who share it.
    pub(super) fn enter_shared(&mut self, ownership: &Arc<Ownership>) -> Result<(), LostReason> {
        let is_held = self.is_held();
        let member = self.group.as_mut().and_then(|group| group.get_mut(ownership));
        let member = member.filter(|member| is_held && member.ownership.ended().is_none());
        let member = member.ok_or_else(|| ended_reason(ownership))?;
        member.holds += 1;
        Ok(())
    }

    /// How many holds one of those who share it has: 0 once it has ended.
    pub(super) fn holds_shared(&self, ownership: &Arc<Ownership>) -> u32 {
        let member = self.group.as_ref().and_then(|group| group.get(ownership));
        let member = member.filter(|member| member.ownership.ended().is_none());
        member.map_or(0, |member| member.holds)
    }

    /// Ends a hold of one of those who share it. `None` if that was the last hold of all: the lease ends as any other
    /// does.
    pub(super) fn leave_shared(
        &mut self,
        ownership: &Arc<Ownership>,
        now: Time,
    ) -> Option<Result<Option<Duration>, LostReason>> {
        let group = self.group.as_mut()?;
        let (State::Held(holds) | State::Lost(holds)) = &mut self.state else {
            return Some(Err(LostReason::Released));
        };
        let Some(member) = group.get_mut(ownership) else {
            return Some(Err(LostReason::Released));
        };
        if member.holds > 1 {
            member.holds -= 1;
            return Some(Ok(None));
        }
        group.remove(ownership);
        if group.members.is_empty() {
            self.current = Arc::clone(ownership);
            return None;
        }
        holds.count -= 1;
        if Arc::ptr_eq(&self.current, ownership)
            && let Some(other) = group.one_inside()
        {
            self.current = Arc::clone(other);
        }
        if group.limit == NO_LIMIT {
            self.follow_at.get_or_insert(now + ROW_FOLLOWS_WITHIN);
        }
        let ends = ownership.end(LostReason::Released, now);
        Some(Ok(ends.then(|| ownership.held_for(now))))
    }

    /// The store has answered that it counts `count` of those who share it; `sent` were inside when it was asked.
    pub(super) fn counted(&mut self, count: u32, sent: u32, enter: Option<Enter>, now: Time) {
        let inside = self.inside();
        let Some(group) = &mut self.group else { return };
        group.counted(count, sent, enter);
        self.row.holds = count;
        self.row_sent.holds = count;
        if inside > 0 && inside != count {
            self.follow_at.get_or_insert(now + ROW_FOLLOWS_WITHIN);
        }
    }

    /// The row counts more than are inside, and others may wait for the room.
    pub(super) fn counts_too_many(&self, inside: u32) -> bool {
        let group = self.group.as_ref();
        group.is_some_and(|group| group.limit != NO_LIMIT && inside < self.row.holds)
    }

    /// The next caller enters beside those who share the lease, or after them while the lease was not released.
    pub(crate) fn join<A>(
        &mut self,
        queue: &mut WaitQueue<A>,
        key: &Key,
        now: Time,
    ) -> Option<(Waiter<A>, Arc<Ownership>)> {
        let (number, first) = queue.first()?;
        let ownership = self.enter_beside(key, &first.call, now)?;
        let waiter = queue.remove(number)?;
        if waiter.since < now {
            let note = Note::Waited(Arc::clone(&ownership), now.since(waiter.since));
            self.notes.push(note);
        }
        Some((waiter, ownership))
    }

    /// As [`join`](Self::join) for a caller whom nobody waits before, if nothing else follows from it: see
    /// [`is_quiet`](Self::is_quiet).
    pub(crate) fn join_quietly(&mut self, key: &Key, call: &Arc<Call>, now: Time) -> Option<Arc<Ownership>> {
        let LockOptions {
            ttl, renew, max_hold, ..
        } = call.options;
        let ends_with_the_lease = renew && max_hold.is_none() && ttl <= self.ttl;
        let quiet = ends_with_the_lease && self.is_quiet();
        quiet.then(|| self.enter_beside(key, call, now)).flatten()
    }

    /// As [`leave_shared`](Self::leave_shared), if others stay and nothing else follows from it: see
    /// [`is_quiet`](Self::is_quiet).
    pub(crate) fn leave_quietly(
        &mut self,
        ownership: &Arc<Ownership>,
        now: Time,
    ) -> Result<Option<Duration>, NotQuiet> {
        let quiet = self.inside() > 1 && self.is_quiet();
        let left = quiet.then(|| self.leave_shared(ownership, now)).flatten();
        left.and_then(Result::ok).ok_or(NotQuiet)
    }

    /// One who enters or leaves changes nothing but who is inside: what is sent stays as it is, and nothing is due sooner.
    /// The row follows by then anyway, no place is given back sooner, and the lease is renewed for somebody who is inside.
    fn is_quiet(&self) -> bool {
        let of_many = |group: &Group| group.limit == NO_LIMIT && group.endless > 0;
        self.is_held() && self.follow_at.is_some() && self.group.as_ref().is_some_and(of_many)
    }

    fn enter_beside(&mut self, key: &Key, call: &Arc<Call>, now: Time) -> Option<Arc<Ownership>> {
        let group = self.group.as_mut()?;
        let inside = match self.state {
            State::Held(Holds { count, .. }) => count,
            State::ReleaseDue => 0,
            _ => return None,
        };
        let times = match &self.term {
            super::Term::Times(times) if !self.current.is_revoked() => *times,
            _ => return None,
        };
        let (ttl, limit) = (call.options.ttl, call.options.limit?);
        let left = self.row.holds.min(self.row_sent.holds).saturating_sub(inside);
        let has_room = left > 0 && group.room > 0 && limit >= group.room_limit;
        let in_stretch = self.hand_over_until.is_some_and(|until| now < until);
        let in_its_place = left > group.room && limit >= group.limit;
        if !has_room && !(in_stretch && (in_its_place || limit == NO_LIMIT)) {
            return None;
        }
        // With the room that it makes, the store has just extended the lease. Else a renewal that is due comes first.
        let extended = has_room && ttl <= self.ttl;
        self.ttl = self.ttl.max(ttl);
        let due = !extended && times.store_end.since(now) < self.ttl.mul_f64(2.0 / 3.0);
        if due || now >= group.deadline {
            return None;
        }
        group.room = group.room.saturating_sub(has_room.into());
        let not_renewed = not_renewed(call.options.renew, ttl, now);
        let mut ownership = Ownership::new(
            key.clone(),
            Arc::clone(call),
            self.lease_id,
            self.current.fence_token,
            now,
            not_renewed.map_or(group.deadline, |end| end.min(group.deadline)),
        );
        ownership.seat = group.members.vacant_key();
        let ownership = Arc::new(ownership);
        group.add(Arc::clone(&ownership), not_renewed);
        if inside == 0 || self.current.ended().is_some() {
            self.current = Arc::clone(&ownership);
        }
        self.state = State::Held(Holds {
            count: inside + 1,
            closed: false,
        });
        if inside == 0 {
            // The former owner need not wait for the store.
            self.confirmations.reply_to_waiting();
        }
        if inside + 1 != self.row.holds {
            self.follow_at.get_or_insert(now + ROW_FOLLOWS_WITHIN);
        }
        Some(ownership)
    }

    /// The callers at the head of the queue for which the store must be asked.
    pub(crate) fn entrants<A>(&self, queue: &WaitQueue<A>, now: Time) -> Option<Enter> {
        if !self.is_shared() || !self.is_held() || self.current.is_revoked() {
            return None;
        }
        let (_, first) = queue.first()?;
        let limit = first.call.options.limit?;
        let mut enter = Enter::new(queue.sharing(limit), limit, now.since(first.since));
        enter.wanted_for = WANTED_FOR;
        Some(enter)
    }
}
