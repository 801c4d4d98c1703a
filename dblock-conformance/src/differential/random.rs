//! Random rows and requests.

use std::time::Duration;

use dblock_core::store::clock::Timestamp;
use dblock_core::store::{
    Acquire, Action, Enter, Extend, HandedOver, Request, Share, SharedHold, Successor, Transfer,
};
use dblock_core::{Key, LockRow};
use fastrand::Rng;
use uuid::Uuid;

const HOLDERS: [&str; 3] = ["host/1 one", "host/2 'two' \\\"", "h\u{f6}st/\u{1f512} drei"];

const LIMITS: [u32; 5] = [1, 2, 3, 5, u32::MAX];

const SPARE: [u32; 3] = [0, 50, u32::MAX];

/// The numbers of a seed. Few leases and owners, so that each occurs often.
pub(super) struct Random {
    numbers: Rng,
    leases: [Uuid; 5],
    owners: [Uuid; 3],
    /// The leases of shared holds: none for a store that has no shared holds.
    sharing: Vec<Uuid>,
}

impl Random {
    pub(super) fn new(seed: u64, shares: bool) -> Self {
        let mut numbers = Rng::with_seed(seed);
        let sharing = if shares { 0..5 } else { 0..0 };
        Self {
            leases: std::array::from_fn(|_| Uuid::from_u128(numbers.u128(1..))),
            owners: std::array::from_fn(|_| Uuid::from_u128(numbers.u128(1..))),
            sharing: sharing.map(|_| Uuid::from_u128(numbers.u128(1..))).collect(),
            numbers,
        }
    }

    pub(super) fn one_in(&mut self, n: u32) -> bool {
        self.numbers.u32(..n) == 0
    }

    pub(super) fn one_of<'t, T>(&mut self, choices: &'t [T]) -> &'t T {
        &choices[self.numbers.usize(..choices.len())]
    }

    /// One, some or all, in any order.
    pub(super) fn some_of<T: Clone>(&mut self, all: &[T]) -> Vec<T> {
        let count = *self.one_of(&[1, 1, 3, all.len()]);
        let mut chosen = all.to_vec();
        self.numbers.shuffle(&mut chosen);
        chosen.truncate(count);
        chosen
    }

    fn millis(&mut self, choices: &[u64]) -> Duration {
        Duration::from_millis(*self.one_of(choices))
    }

    fn owner(&mut self) -> Uuid {
        let owners = self.owners;
        *self.one_of(&owners)
    }

    /// A lease that is not `other`.
    fn lease_but(&mut self, other: Uuid) -> Uuid {
        let leases: Vec<Uuid> = self.leases.into_iter().filter(|&lease| lease != other).collect();
        *self.one_of(&leases)
    }

    /// A lease of those that share, which has no part in the row.
    fn sharing_but(&mut self, row: &LockRow) -> Uuid {
        let holds = row.shared.iter().map(|hold| hold.lease_id);
        let inside: Vec<Uuid> = holds.chain([row.lease_id]).collect();
        let sharing = self.sharing.iter().copied();
        let leases: Vec<Uuid> = sharing.filter(|lease| !inside.contains(lease)).collect();
        *self.one_of(&leases)
    }

    /// A row in any state, without its clock. It may be one that only another version of dblock leaves.
    pub(super) fn row(&mut self, key: &Key, now: Timestamp) -> LockRow {
        let now = now.as_micros();
        let later = |random: &mut Self, millis: &[i64]| now + 1_000 * random.one_of(millis);
        let reentrant_count = *self.one_of(&[0, 1, 1, 3]);
        let lease_id = self.lease_but(Uuid::nil());
        let fence_token = match self.numbers.u32(..16) {
            // The largest tokens.
            0 => i64::MAX - self.numbers.i64(0..4),
            1..8 => 1,
            _ => later(self, &[-10_000, 600_000]),
        };
        let spare = i64::from(*self.one_of(&SPARE));
        let mut row = LockRow::new(key.clone(), Timestamp::EPOCH);
        row.owner = self.owner();
        row.reentrant_count = reentrant_count;
        row.expire_at = Timestamp::from_micros(later(self, &[-600_000, 2_000, 20_000, 600_000]));
        row.lease_id = lease_id;
        row.fence_token = fence_token;
        row.fence_ceiling = fence_token.saturating_add(spare);
        let wanted = [0, now - 60_000_000, now + 2_000_000, now + 600_000_000];
        row.wanted_until = Timestamp::from_micros(*self.one_of(&wanted));
        row.acquired_at = Timestamp::from_micros(now - 700_000_000);
        row.holder = String::from(*self.one_of(&HOLDERS));
        row.revoked = self.one_in(3);
        if !self.sharing.is_empty() && self.one_in(2) {
            self.share(&mut row, now);
        }
        row.next = (!self.one_in(3)).then(|| self.successor(&row, now));
        row
    }

    /// Makes it the row of a shared lock, or of one that was passed on to somebody who will share it.
    fn share(&mut self, row: &mut LockRow, now: i64) {
        let mut leases = self.sharing.clone();
        self.numbers.shuffle(&mut leases);
        if self.one_in(6) {
            row.lease_id = leases[0];
            return;
        }
        // A lease that no request names.
        row.lease_id = Uuid::from_u128(self.numbers.u128(1..));
        leases.truncate(self.numbers.usize(1..=4));
        for lease_id in leases {
            // None of them ends before a step is over, unless it has ended.
            let ends = now + 1_000 * self.one_of(&[-600_000, 2_000, 20_000, 600_000]);
            let mut hold = SharedHold::new(lease_id, *self.one_of(&HOLDERS), Timestamp::from_micros(ends));
            hold.count = *self.one_of(&[1, 1, 2]);
            hold.number = self.numbers.u64(0..4);
            row.shared.push(hold);
        }
        row.reentrant_count = row.shared.iter().map(|hold| hold.count).sum();
        row.expire_at = row
            .shared
            .iter()
            .map(|hold| hold.expire_at)
            .max()
            .unwrap_or_default();
    }

    fn successor(&mut self, row: &LockRow, now: i64) -> Successor {
        let since = *self.one_of(&[-600_000, -31_500, -30_500, -1_500, -500, 0]);
        let until = *self.one_of(&[-60_000, -1_000, 2_000, 60_000, 600_000]);
        let (lease_id, limit) = if !self.sharing.is_empty() && self.one_in(2) {
            (self.sharing_but(row), Some(*self.one_of(&LIMITS)))
        } else {
            (self.lease_but(row.lease_id), None)
        };
        Successor {
            lease_id,
            owner: self.owner(),
            holder: String::from(*self.one_of(&HOLDERS)),
            ttl: self.millis(&[1_000, 3_000]),
            spare_tokens: *self.one_of(&SPARE),
            since: Timestamp::from_micros(now + 1_000 * since),
            until: Timestamp::from_micros(now + 1_000 * until),
            limit,
        }
    }

    /// A request, often by a lease that `row` names.
    pub(super) fn request(&mut self, key: &Key, row: Option<&LockRow>, now: Timestamp) -> Request {
        let next = row.and_then(|row| row.next.as_ref());
        if !self.sharing.is_empty() && self.one_in(2) {
            return self.sharing_request(key, row, next, now);
        }
        // The leases of shared holds, and that which a shared row names, are not for these requests.
        let holding = row
            .map(|row| row.lease_id)
            .filter(|lease| self.leases.contains(lease));
        let holding = holding.unwrap_or_else(|| self.lease_but(Uuid::nil()));
        let mut leases = vec![holding, holding, self.lease_but(holding)];
        leases.extend(next.map(|next| next.lease_id));
        leases.retain(|lease| self.leases.contains(lease));
        let lease_id = *self.one_of(&leases);
        // Mostly actions that change the row.
        let acquires = if lease_id == holding { 1 } else { 4 };
        let action = match self.numbers.u32(..5 + acquires) {
            0..2 => Action::Release,
            2 => Action::Transfer(self.transfer(holding)),
            3..5 => Action::Extend(self.extend(row.map_or(0, |row| row.fence_token))),
            _ => Action::Acquire(self.acquire(next, now)),
        };
        Request::new(key.clone(), lease_id, action)
    }

    /// A request for a shared hold, often by a lease that has one.
    fn sharing_request(
        &mut self,
        key: &Key,
        row: Option<&LockRow>,
        next: Option<&Successor>,
        now: Timestamp,
    ) -> Request {
        let sharing = self.sharing.clone();
        let mut leases = vec![*self.one_of(&sharing)];
        if let Some(row) = row {
            leases.extend(row.shared.iter().map(|hold| hold.lease_id));
            leases.push(row.lease_id);
        }
        leases.extend(next.map(|next| next.lease_id));
        leases.retain(|lease| self.sharing.contains(lease));
        let lease_id = *self.one_of(&leases);
        let action = match self.numbers.u32(..7) {
            0..2 => Action::Release,
            2..4 => {
                let ttl = self.millis(&[1_000, 3_000, 30_000, 600_000]);
                let enter = (!self.one_in(3)).then(|| {
                    let waited = self.millis(&[0, 1_000, 30_000, 600_000]);
                    Enter::new(self.numbers.u32(1..4), *self.one_of(&LIMITS), waited)
                });
                let mut ask = Extend::new(self.numbers.u32(0..4), ttl);
                ask.share = Some(Share::new(self.numbers.u64(0..5), enter));
                Action::Extend(ask)
            }
            _ => {
                let mut ask = self.acquire(next, now);
                ask.limit = Some(*self.one_of(&LIMITS));
                Action::Acquire(ask)
            }
        };
        Request::new(key.clone(), lease_id, action)
    }

    fn acquire(&mut self, next: Option<&Successor>, now: Timestamp) -> Acquire {
        let ttl = self.millis(&[1_000, 3_000, 30_000]);
        let holder = *self.one_of(&HOLDERS);
        let mut ask = Acquire::new(self.owner(), ttl, holder);
        if !self.one_in(4) {
            ask.wanted_for = Some(self.millis(&[1_000, 60_000, 600_000]));
        }
        if !self.one_in(3) {
            // About as long as the successor, or any time.
            let longer = self.millis(&[0, 500, 1_500]);
            let waited = next.map(|next| now.since(next.since) + longer);
            let any = self.millis(&[0, 1_000, 30_000, 600_000]);
            ask.queue = waited.filter(|_| !self.one_in(3)).or(Some(any));
        }
        ask.spare_tokens = *self.one_of(&SPARE);
        ask
    }

    /// Sometimes to the lease that the row names already, as a request that is repeated.
    fn transfer(&mut self, holding: Uuid) -> Transfer {
        let to = if self.one_in(3) {
            holding
        } else {
            self.lease_but(holding)
        };
        let ttl = self.millis(&[1_000, 3_000, 30_000]);
        Transfer::new(to, self.owner(), ttl, *self.one_of(&HOLDERS))
    }

    fn extend(&mut self, fence_token: i64) -> Extend {
        let ttl = self.millis(&[1_000, 3_000, 30_000, 600_000]);
        let mut ask = Extend::new(self.numbers.u32(0..4), ttl);
        ask.handed_over = self.one_in(2).then(|| {
            let (owner, holder) = (self.owner(), *self.one_of(&HOLDERS));
            let token = fence_token.saturating_add(*self.one_of(&[-1, 0, 1, 50]));
            HandedOver::new(owner, holder, token)
        });
        ask
    }
}
