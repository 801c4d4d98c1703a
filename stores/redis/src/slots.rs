//! The slots of a Redis Cluster: which one a key has, and which servers have them.

use std::collections::HashMap;

use dblock_core::store::{StoreError, StoreErrorKind};
use redis::{FromRedisValue as _, Value};

use crate::login::named_by;

pub(crate) const SLOTS: u16 = 16_384;

/// Slots that a server has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    start: u16,
    end: u16,
    pub(crate) address: String,
    /// Of two servers that are said to have a slot, the one with the larger epoch has it:
    /// <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-slots-configuration-propagation>.
    epoch: u64,
    /// Somebody else than the server itself says so, or it has carried out a request. Then the epoch is not forgotten: a
    /// server of another cluster may tell any.
    pub(crate) is_sure: bool,
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

/// Whether a slot that was known has another server now.
pub(crate) fn is_moved(before: &[Range], now: &[Range]) -> bool {
    // Each part of both begins where a range of one of them does.
    let mut starts = before.iter().chain(now).map(|range| range.start);
    starts.any(|slot| {
        let servers = (find(before, slot), find(now, slot));
        matches!(servers, (Some(before), Some(now)) if before != now)
    })
}

/// Who has which slot by all that is said, in the order of the slots. Of equal epochs the one that is sure counts, or
/// else the first.
pub(crate) fn newest(said: &[Range]) -> Vec<Range> {
    let mut owners: Vec<Option<&Range>> = vec![None; SLOTS.into()];
    for range in said {
        for owner in owners
            .iter_mut()
            .take(usize::from(range.end) + 1)
            .skip(range.start.into())
        {
            if owner.is_none_or(|other| (other.epoch, other.is_sure) < (range.epoch, range.is_sure)) {
                *owner = Some(range);
            }
        }
    }
    let mut ranges: Vec<Range> = Vec::new();
    for (slot, owner) in (0..SLOTS).zip(owners) {
        let Some(owner) = owner else { continue };
        let next = Range {
            start: slot,
            end: slot,
            ..owner.clone()
        };
        let continues = |before: &Range| {
            before.end + 1 == slot
                && before.address == next.address
                && (before.epoch, before.is_sure) == (next.epoch, next.is_sure)
        };
        match ranges.last_mut().filter(|before| continues(before)) {
            Some(before) => before.end = slot,
            None => ranges.push(next),
        }
    }
    ranges
}

/// Reads the answers of the server `asked` to `CLUSTER NODES` and `CLUSTER SLOTS`. The first has the epochs,
/// and the second the addresses that clients should use. Each entry of the second is a range and its servers,
/// the primary first.
pub(crate) fn read(nodes: &str, slots: Value, asked: &str) -> Result<Vec<Range>, StoreError> {
    let Value::Array(entries) = slots else {
        return Err(unreadable(asked, &slots));
    };
    let epochs = epochs(nodes);
    let ranges = entries.iter();
    ranges
        .map(|entry| range(entry, &epochs, asked).ok_or_else(|| unreadable(asked, entry)))
        .collect()
}

/// The epoch of each server, by its id, and whether it is another one than the server that says so. A line is
/// `id address flags primary sent received epoch …`.
fn epochs(nodes: &str) -> HashMap<&str, (u64, bool)> {
    let columns = nodes.lines().map(|line| line.split(' '));
    columns
        .filter_map(|mut columns| {
            let (id, flags) = (columns.next()?, columns.nth(1)?);
            Some((id, (columns.nth(3)?.parse().ok()?, !flags.contains("myself"))))
        })
        .collect()
}

fn range(entry: &Value, epochs: &HashMap<&str, (u64, bool)>, asked: &str) -> Option<Range> {
    let Value::Array(columns) = entry else {
        return None;
    };
    let [start, end, Value::Array(primary), ..] = &**columns else {
        return None;
    };
    let number = |value: &Value| u16::from_redis_value_ref(value).ok();
    let host = Option::<String>::from_redis_value_ref(primary.first()?).ok()?;
    let port = number(primary.get(1)?)?;
    let id = String::from_redis_value_ref(primary.get(2)?).ok()?;
    let address = named_by(asked, &format!("{}:{port}", host.unwrap_or_default()));
    let (epoch, is_sure) = epochs.get(&*id).copied().unwrap_or_default();
    Some(Range {
        start: number(start)?,
        end: number(end)?,
        address,
        epoch,
        is_sure,
    })
}

fn unreadable(asked: &str, found: &Value) -> StoreError {
    let message = format!("{asked}: the servers of the Redis Cluster cannot be read from {found:?}");
    StoreError::new(StoreErrorKind::Other, message)
}

#[cfg(test)]
impl Range {
    pub(crate) fn of(start: u16, end: u16, address: &str, epoch: u64) -> Self {
        Self {
            start,
            end,
            address: address.to_owned(),
            epoch,
            is_sure: false,
        }
    }
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
            let servers = Value::Array(vec![host, Value::Int(port), text(&format!("id{port}"))]);
            Value::Array(vec![Value::Int(start), Value::Int(end), servers])
        };
        let slots = Value::Array(vec![
            entry(101, 16_383, text("::1"), 2),
            entry(0, 99, Value::Nil, 1),
        ]);
        let nodes =
            "id1 here:1@1 myself,master - 0 0 7 connected 0-99\nid2 ::1:2@2 master - 0 0 8 connected\n";
        let ranges = newest(&read(nodes, slots, "here:7").unwrap());
        let told = ranges.iter().map(|range| (range.epoch, range.is_sure));
        assert_eq!(told.collect::<Vec<_>>(), [(7, false), (8, true)]);
        assert_eq!(find(&ranges, 0), Some("here:1"));
        assert_eq!(find(&ranges, 99), Some("here:1"));
        assert_eq!(find(&ranges, 100), None);
        assert_eq!(find(&ranges, 16_383), Some("[::1]:2"));
        assert!(read("", Value::Array(vec![text("x")]), "here:7").is_err());
    }

    #[test]
    fn of_several_servers_the_one_with_the_newest_epoch_has_a_slot() {
        let range = Range::of;
        let old = range(0, 16_383, "old", 1);
        let (new, newer) = (range(5, 9, "new", 2), range(8, 8, "newer", 3));
        for said in [
            [old.clone(), new.clone(), newer.clone()],
            [newer.clone(), new, old.clone()],
        ] {
            assert_eq!(
                newest(&said),
                [
                    range(0, 4, "old", 1),
                    range(5, 7, "new", 2),
                    newer.clone(),
                    range(9, 9, "new", 2),
                    range(10, 16_383, "old", 1),
                ]
            );
        }
        assert_eq!(
            newest(&[range(0, 3, "a", 1), range(2, 4, "b", 1)])[1],
            range(4, 4, "b", 1)
        );
        let (of_old, of_both) = ([old.clone()], newest(&[old.clone(), newer.clone()]));
        assert!(is_moved(&of_old, &of_both) && is_moved(&of_both, &of_old));
        assert!(!is_moved(&[], &of_old) && !is_moved(&of_old, &[range(3, 4, "old", 9)]));
        let sure = Range {
            is_sure: true,
            ..range(2, 2, "b", 1)
        };
        assert_eq!(newest(&[range(0, 3, "a", 1), sure.clone()])[1], sure);
    }
}
