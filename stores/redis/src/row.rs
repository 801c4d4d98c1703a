//! Reads the answers of the scripts.

use std::time::Duration;

use dblock_core::store::clock::Timestamp;
use dblock_core::store::{
    Holder, Outcome, Released, Request, SharedHold, StoreError, StoreErrorKind, Successor,
};
use dblock_core::{Key, LockRow};
use redis::Value;
use uuid::Uuid;

use crate::script::TOKEN;

/// The layout of a row that is shared, or will be next, as `row.lua` has it.
const SHARED: u8 = 2;

/// The answers of a script that gives several.
pub(crate) fn each(value: Value) -> Result<impl Iterator<Item = Value>, StoreError> {
    match value {
        Value::Array(answers) => Ok(answers.into_iter()),
        other => Err(unreadable(&other)),
    }
}

/// Columns that are packed into one string, one after the other. Numbers are little-endian, and times in µs.
struct Columns<'a>(&'a [u8]);

impl<'a> Columns<'a> {
    fn of(value: &'a Value) -> Result<Self, StoreError> {
        match value {
            Value::BulkString(packed) => Ok(Self(packed)),
            other => Err(unreadable(other)),
        }
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], StoreError> {
        let (bytes, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| unreadable(&self.0))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(|| unreadable(&self.0))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn byte(&mut self) -> Result<u8, StoreError> {
        self.array().map(u8::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, StoreError> {
        Ok(self.byte()? != 0)
    }

    fn count(&mut self) -> Result<u32, StoreError> {
        self.array().map(u32::from_le_bytes)
    }

    fn moment(&mut self) -> Result<Timestamp, StoreError> {
        self.micros().map(Timestamp::from_micros)
    }

    fn micros(&mut self) -> Result<i64, StoreError> {
        self.array().map(i64::from_le_bytes)
    }

    fn length(&mut self) -> Result<Duration, StoreError> {
        let micros = u64::try_from(self.micros()?).map_err(|error| unreadable(&error))?;
        Ok(Duration::from_micros(micros))
    }

    fn id(&mut self) -> Result<Uuid, StoreError> {
        self.array().map(Uuid::from_bytes)
    }

    fn token(&mut self) -> Result<i64, StoreError> {
        let digits = str::from_utf8(self.bytes(TOKEN)?).map_err(|error| unreadable(&error))?;
        digits.parse().map_err(|error| unreadable(&error))
    }

    /// A text behind its length. It is for people only.
    fn text(&mut self) -> Result<String, StoreError> {
        let length = self.byte()?;
        Ok(String::from_utf8_lossy(self.bytes(length.into())?).into_owned())
    }

    /// The hold of a process that shares the lock.
    fn hold(&mut self) -> Result<SharedHold, StoreError> {
        let (lease_id, count) = (self.id()?, self.count()?);
        let (number, until) = (self.array().map(u64::from_le_bytes)?, self.moment()?);
        let mut hold = SharedHold::new(lease_id, self.text()?, until);
        (hold.count, hold.number) = (count, number);
        Ok(hold)
    }

    fn holder(&mut self) -> Result<Holder, StoreError> {
        let (owner, left, token) = (self.id()?, self.length()?, self.token()?);
        Ok(Holder::new(owner, self.text()?, token, left))
    }
}

/// The answers to requests, in their order. An error of one is no error of the others.
pub(crate) fn outcomes(
    value: &Value,
    requests: &[&Request],
) -> Result<Vec<Result<Outcome, StoreError>>, StoreError> {
    let mut columns = Columns::of(value)?;
    let answers = requests.iter();
    answers.map(|request| outcome(&mut columns, request)).collect()
}

fn outcome(columns: &mut Columns<'_>, request: &Request) -> Result<Result<Outcome, StoreError>, StoreError> {
    let key = &request.key;
    Ok(Ok(match columns.byte()? {
        letter @ (b'G' | b'T') => {
            let (left, wanted, token) = (columns.length()?, columns.flag()?, columns.token()?);
            let taken_over = if letter == b'T' {
                Some(columns.holder()?)
            } else {
                None
            };
            Outcome::granted(token, left)
                .with_taken_over(taken_over)
                .with_wanted(wanted)
        }
        b'E' => Outcome::extended(columns.length()?)
            .with_revoked(columns.flag()?)
            .with_wanted(columns.flag()?)
            .with_count(columns.count()?)
            .with_room_in(Some(columns.length()?).filter(|time| !time.is_zero())),
        b'R' => Outcome::Released(match (columns.flag()?, columns.flag()?) {
            (false, _) => Released::Before,
            (true, false) => Released::Freed,
            (true, true) => Released::PassedOn,
        }),
        b'W' => Outcome::Withdrawn,
        b'B' => Outcome::Busy(columns.holder()?),
        b'Q' => Outcome::queued(columns.holder()?, columns.length()?),
        b'L' => Outcome::Lost,
        b'U' => return Ok(Err(used_up(key))),
        b'X' => return Ok(Err(no_row(key))),
        other => return Err(unreadable(&char::from(other))),
    }))
}

/// The server's clock, with which the answer to a look begins.
pub(crate) fn clock(first: Option<Value>) -> Result<i64, StoreError> {
    match first {
        Some(Value::Int(now)) => Ok(now),
        other => Err(unreadable(&other)),
    }
}

/// The row of `key`, if there is one, by the server's clock `now`. Its layout is in `row.lua`.
pub(crate) fn lock_row(packed: &Value, key: Key, now: i64) -> Result<Option<LockRow>, StoreError> {
    let mut columns = Columns::of(packed)?;
    if columns.0.is_empty() {
        return Ok(None);
    }
    if columns.0 == b"X" {
        return Err(no_row(&key));
    }
    let layout = columns.byte()?;
    let mut row = LockRow::new(key, Timestamp::from_micros(now));
    row.reentrant_count = columns.count()?;
    let has_next = columns.flag()?;
    row.revoked = columns.flag()?;
    row.lease_id = columns.id()?;
    row.owner = columns.id()?;
    row.expire_at = columns.moment()?;
    row.wanted_until = columns.moment()?;
    row.acquired_at = columns.moment()?;
    row.fence_token = columns.token()?;
    row.fence_ceiling = columns.token()?;
    row.holder = columns.text()?;
    if has_next {
        let (lease_id, owner, ttl) = (columns.id()?, columns.id()?, columns.length()?);
        let (since, until, spare_tokens) = (columns.moment()?, columns.moment()?, columns.count()?);
        let holder = columns.text()?;
        row.next = Some(Successor {
            lease_id,
            owner,
            holder,
            ttl,
            spare_tokens,
            since,
            until,
            limit: None,
        });
    }
    if layout == SHARED {
        let (limit, holds) = (columns.count()?, columns.count()?);
        if let Some(next) = &mut row.next {
            next.limit = (limit > 0).then_some(limit);
        }
        for _ in 0..holds {
            row.shared.push(columns.hold()?);
        }
    }
    Ok(Some(row))
}

fn used_up(key: &Key) -> StoreError {
    let message = format!("the fence tokens of {key:?} are used up: its row must be deleted by hand");
    StoreError::new(StoreErrorKind::Other, message)
}

/// Something is there that this version has not written.
pub(crate) fn no_row(key: &Key) -> StoreError {
    let message = format!(
        "what the server keeps in the place of the lock {key:?} is no lock of this version: upgrade dblock-redis if a \
         later one has written it; else choose another prefix with `RedisStore::prefix`, or delete it by hand"
    );
    StoreError::new(StoreErrorKind::Schema, message)
}

/// Our own script has answered. So this happens only if something between us and the server changes answers.
fn unreadable(found: &dyn std::fmt::Debug) -> StoreError {
    let message =
        format!("the Redis server's answer cannot be read, as behind a proxy that changes it: {found:?}");
    StoreError::new(StoreErrorKind::Other, message)
}
