//! Between dblock's types and the small ones.

use std::time::Duration;

use dblock_core::store::clock::Timestamp;
use dblock_core::store::{self, Successor};
use dblock_core::{Key, LockRow};
use uuid::Uuid;

use super::{LeaseId, Next, Outcome, Process, Row, Time, Token};

/// A ttl of three ticks is longer than what a release passes on, which is two; and who has waited a tick
/// longer is before another successor.
const TICK: Duration = Duration::from_millis(1500);
pub(super) const TICK_MICROS: i64 = 1_500_000;

impl From<LeaseId> for Uuid {
    fn from(lease: LeaseId) -> Self {
        let mut bytes = [0; 16];
        (bytes[0], bytes[1]) = (lease.process.0, lease.number);
        Self::from_bytes(bytes)
    }
}

impl From<Uuid> for LeaseId {
    fn from(lease: Uuid) -> Self {
        let [process, number, ..] = lease.into_bytes();
        let process = Process(process);
        Self { process, number }
    }
}

impl Row {
    /// As the rules see it.
    pub(super) fn at(&self, now: Time) -> LockRow {
        let mut row = LockRow::new(key(), moment(now));
        row.reentrant_count = self.count.into();
        row.expire_at = moment(self.expire_at);
        row.lease_id = self.lease.into();
        row.fence_token = self.token.0;
        row.fence_ceiling = self.ceiling.0;
        row.next = self.next.map(|next| Successor {
            lease_id: next.lease.into(),
            owner: Uuid::nil(),
            holder: String::new(),
            ttl: length(next.ttl),
            spare_tokens: next.spare.into(),
            since: moment(next.since),
            until: moment(next.until),
            limit: None,
        });
        row
    }
}

impl From<&LockRow> for Row {
    fn from(row: &LockRow) -> Self {
        Self {
            lease: row.lease_id.into(),
            count: small(row.reentrant_count),
            expire_at: ticks(row.expire_at.as_micros()),
            token: Token(row.fence_token),
            ceiling: Token(row.fence_ceiling),
            next: row.next.as_ref().map(|next| Next {
                lease: next.lease_id.into(),
                ttl: small(next.ttl.as_micros() / TICK.as_micros()),
                spare: small(next.spare_tokens),
                since: ticks(next.since.as_micros()),
                until: ticks(next.until.as_micros()),
            }),
        }
    }
}

impl From<store::Outcome> for Outcome {
    fn from(outcome: store::Outcome) -> Self {
        let ticks = |length: Duration| small(length.as_micros() / TICK.as_micros());
        match outcome {
            store::Outcome::Granted {
                fence_token,
                remaining,
                ..
            } => Self::Granted(Token(fence_token), ticks(remaining)),
            store::Outcome::Extended { remaining, .. } => Self::Extended(ticks(remaining)),
            store::Outcome::Released(_) => Self::Released,
            store::Outcome::Withdrawn => Self::Withdrawn,
            store::Outcome::Busy(_) | store::Outcome::Skipped => Self::Busy,
            store::Outcome::Queued { holder, next_ttl, .. } => {
                Self::Queued(Token(holder.fence_token), ticks(next_ttl))
            }
            store::Outcome::Lost => Self::Lost,
            other => unreachable!("the model asks for nothing that is answered with {other:?}"),
        }
    }
}

pub(super) fn key() -> Key {
    thread_local!(static KEY: Key = Key::new(None, "key").expect("a key"));
    KEY.with(Key::clone)
}

pub(crate) fn moment(time: Time) -> Timestamp {
    Timestamp::from_micros(micros(time))
}

pub(crate) fn micros(time: Time) -> i64 {
    i64::from(time) * TICK_MICROS
}

pub(super) fn length(ticks: Time) -> Duration {
    TICK * ticks.into()
}

pub(super) fn ticks(micros: i64) -> Time {
    small(micros / TICK_MICROS)
}

pub(super) fn small<T: TryInto<u8>>(number: T) -> u8 {
    number.try_into().ok().expect("the numbers of a model are small")
}
