//! Random rows and requests.

use std::time::Duration;

use dblock_core::store::clock::Timestamp;
use dblock_core::store::{Acquire, Action, Extend, HandedOver, Request, Successor, Transfer};
use dblock_core::{Key, LockRow};
use fastrand::Rng;
use uuid::Uuid;

const HOLDERS: [&str; 3] = ["host/1 one", "host/2 'two' \\\"", "h\u{f6}st/\u{1f512} drei"];

const SPARE: [u32; 3] = [0, 50, u32::MAX];

/// The numbers of a seed. Few leases and owners, so that each occurs often.
pub(super) struct Random {
    numbers: Rng,
    leases: [Uuid; 5],
    owners: [Uuid; 3],
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut numbers = Rng::with_seed(seed);
        Self {
            leases: std::array::from_fn(|_| Uuid::from_u128(numbers.u128(1..))),
            owners: std::array::from_fn(|_| Uuid::from_u128(numbers.u128(1..))),
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
        row.next = (!self.one_in(3)).then(|| self.successor(lease_id, now));
        row
    }

    fn successor(&mut self, holding: Uuid, now: i64) -> Successor {
        let since = *self.one_of(&[-600_000, -31_500, -30_500, -1_500, -500, 0]);
        let until = *self.one_of(&[-60_000, -1_000, 2_000, 60_000, 600_000]);
        Successor {
            lease_id: self.lease_but(holding),
            owner: self.owner(),
            holder: String::from(*self.one_of(&HOLDERS)),
            ttl: self.millis(&[1_000, 3_000]),
            spare_tokens: *self.one_of(&SPARE),
            since: Timestamp::from_micros(now + 1_000 * since),
            until: Timestamp::from_micros(now + 1_000 * until),
            limit: None,
        }
    }

    /// A request, often by a lease that `row` names.
    pub(super) fn request(&mut self, key: &Key, row: Option<&LockRow>, now: Timestamp) -> Request {
        let next = row.and_then(|row| row.next.as_ref());
        let holding = row.map_or_else(|| self.lease_but(Uuid::nil()), |row| row.lease_id);
        let mut leases = vec![holding, holding, self.lease_but(holding)];
        leases.extend(next.map(|next| next.lease_id));
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
