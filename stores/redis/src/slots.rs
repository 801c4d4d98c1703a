//! The slots of a Redis Cluster: which one a key has, and which servers have them.

use dblock_core::store::{StoreError, StoreErrorKind};
use redis::{FromRedisValue as _, Value};

use crate::login::named_by;

const SLOTS: u16 = 16_384;

/// Slots up to `end`, from the end of the range before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    start: u16,
    end: u16,
    pub(crate) address: String,
}

/// The slot of a key, which is that of its tag if it has one:
/// <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags>.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

/// The text between the first `{` and the first `}` behind it.
fn tag(key: &[u8]) -> &[u8] {
    let position = |bytes: &[u8], wanted| bytes.iter().position(|byte| *byte == wanted);
    let tag = position(key, b'{').and_then(|open| {
        let rest = &key[open + 1..];
        position(rest, b'}').map(|close| &rest[..close])
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// CRC-16/XMODEM.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

pub(crate) fn find(ranges: &[Range], slot: u16) -> Option<&str> {
    let place = ranges.partition_point(|range| range.end < slot);
    let range = ranges.get(place).filter(|range| range.start <= slot)?;
    Some(&range.address)
}

/// Reads the answer to `CLUSTER SLOTS` of the server `asked`. Each entry is a range and its servers, the
/// primary first.
pub(crate) fn read(answer: Value, asked: &str) -> Result<Vec<Range>, StoreError> {
    let Value::Array(entries) = answer else {
        return Err(unreadable(asked, &answer));
    };
    let mut ranges = Vec::new();
    for entry in entries {
        ranges.push(range(&entry, asked).ok_or_else(|| unreadable(asked, &entry))?);
    }
    ranges.sort_unstable_by_key(|range| range.end);
    Ok(ranges)
}

fn range(entry: &Value, asked: &str) -> Option<Range> {
    let Value::Array(columns) = entry else {
        return None;
    };
    let [start, end, Value::Array(primary), ..] = &**columns else {
        return None;
    };
    let number = |value: &Value| u16::from_redis_value_ref(value).ok();
    let host = Option::<String>::from_redis_value_ref(primary.first()?).ok()?;
    let port = number(primary.get(1)?)?;
    let address = named_by(asked, &format!("{}:{port}", host.unwrap_or_default()));
    Some(Range {
        start: number(start)?,
        end: number(end)?,
        address,
    })
}

fn unreadable(asked: &str, found: &Value) -> StoreError {
    let message = format!("{asked}: the servers of the Redis Cluster cannot be read from {found:?}");
    StoreError::new(StoreErrorKind::Other, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_slot_that_the_specification_gives() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{foo}:bar{baz}"), slot(b"foo"));
        assert_eq!(tag(b"{}foo{bar}"), b"{}foo{bar}");
        assert_eq!(tag(b"a{{b}c"), b"{b");
    }

    #[test]
    fn the_servers_are_read_and_found() {
        let text = |text: &str| Value::BulkString(text.into());
        let entry = |start, end, host, port| {
            let servers = Value::Array(vec![host, Value::Int(port), text("id")]);
            Value::Array(vec![Value::Int(start), Value::Int(end), servers])
        };
        let answer = Value::Array(vec![
            entry(101, 16_383, text("::1"), 2),
            entry(0, 99, Value::Nil, 1),
        ]);
        let ranges = read(answer, "here:7").unwrap();
        assert_eq!(find(&ranges, 0), Some("here:1"));
        assert_eq!(find(&ranges, 99), Some("here:1"));
        assert_eq!(find(&ranges, 100), None);
        assert_eq!(find(&ranges, 16_383), Some("[::1]:2"));
        assert!(read(Value::Array(vec![text("x")]), "here:7").is_err());
    }
}
