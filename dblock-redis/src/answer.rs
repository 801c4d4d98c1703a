//! Reads the answers of the scripts.

use std::time::Duration;

use dblock::store::{Holder, Outcome, StoreError, StoreErrorKind, Successor};
use dblock::{Key, LockRow};
use redis::Value;
use uuid::Uuid;

/// The columns of an answer, one after the other.
pub(crate) struct Columns(std::vec::IntoIter<Value>);

impl Columns {
    pub(crate) fn of(value: Value) -> Result<Self, StoreError> {
        match value {
            Value::Array(columns) => Ok(Self(columns.into_iter())),
            other => Err(unreadable(&other)),
        }
    }

    /// The answers for the keys, if this is the answer of a whole script.
    pub(crate) fn answers(self) -> impl Iterator<Item = Value> {
        self.0
    }

    pub(crate) fn number(&mut self) -> Result<i64, StoreError> {
        match self.0.next() {
            Some(Value::Int(number)) => Ok(number),
            other => Err(unreadable(&other)),
        }
    }

    fn bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            other => Err(unreadable(&other)),
        }
    }

    fn text(&mut self) -> Result<String, StoreError> {
        String::from_utf8(self.bytes()?).map_err(|error| unreadable(&error))
    }

    fn id(&mut self) -> Result<Uuid, StoreError> {
        Uuid::from_slice(&self.bytes()?).map_err(|error| unreadable(&error))
    }

    fn token(&mut self) -> Result<i64, StoreError> {
        self.text()?.parse().map_err(|error| unreadable(&error))
    }

    fn count(&mut self) -> Result<u32, StoreError> {
        u32::try_from(self.number()?).map_err(|error| unreadable(&error))
    }

    fn length(&mut self) -> Result<Duration, StoreError> {
        let micros = u64::try_from(self.number()?).map_err(|error| unreadable(&error))?;
        Ok(Duration::from_micros(micros))
    }

    fn flag(&mut self) -> Result<bool, StoreError> {
        Ok(self.number()? != 0)
    }

    fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    fn holder(&mut self) -> Result<Holder, StoreError> {
        Ok(Holder::new(
            self.id()?,
            self.text()?,
            self.token()?,
            self.length()?,
        ))
    }
}

/// The answer to a request for `key`.
pub(crate) fn outcome(answer: Value, key: &Key) -> Result<Outcome, StoreError> {
    let mut columns = Columns::of(answer)?;
    Ok(match &*columns.bytes()? {
        b"G" => {
            let (token, left, wanted) = (columns.token()?, columns.length()?, columns.flag()?);
            let taken_over = if columns.is_empty() {
                None
            } else {
                let (owner, name, token) = (columns.id()?, columns.text()?, columns.token()?);
                Some(Holder::new(owner, name, token, Duration::ZERO))
            };
            Outcome::granted(token, left, taken_over, wanted)
        }
        b"E" => Outcome::extended(columns.length()?, columns.flag()?, columns.flag()?),
        b"R" => Outcome::released(columns.flag()?, columns.flag()?),
        b"W" => Outcome::Withdrawn,
        b"B" => Outcome::Busy(columns.holder()?),
        b"Q" => Outcome::queued(columns.holder()?, columns.length()?),
        b"L" => Outcome::Lost,
        b"U" => return Err(used_up(key)),
        b"X" => return Err(no_row(key)),
        other => return Err(unreadable(&other)),
    })
}

/// The row of `key`, if there is one, by the server's clock `now`.
pub(crate) fn row(answer: Value, key: Key, now: i64) -> Result<Option<LockRow>, StoreError> {
    let mut columns = Columns::of(answer)?;
    if columns.is_empty() {
        return Ok(None);
    }
    if &*columns.bytes()? != b"H" {
        return Err(no_row(&key));
    }
    let mut row = LockRow::new(key, now);
    row.lease_id = columns.id()?;
    row.owner = columns.id()?;
    row.reentrant_count = columns.count()?;
    row.expire_at = columns.number()?;
    row.fence_token = columns.token()?;
    row.fence_ceiling = columns.token()?;
    row.wanted_until = columns.number()?;
    row.acquired_at = columns.number()?;
    row.revoked = columns.flag()?;
    row.holder = columns.text()?;
    if !columns.is_empty() {
        row.next = Some(Successor::new(
            columns.id()?,
            columns.id()?,
            columns.text()?,
            columns.number()?,
            columns.count()?,
            columns.number()?,
            columns.number()?,
        ));
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

/// Our own script has answered, so this cannot be unless something between changes answers.
fn unreadable(found: &dyn std::fmt::Debug) -> StoreError {
    let message =
        format!("the Redis server's answer cannot be read, as behind a proxy that changes it: {found:?}");
    StoreError::new(StoreErrorKind::Other, message)
}
