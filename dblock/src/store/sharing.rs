//! Shared holds in a lock table: which requests concern them, and the column `shared`.
//!
//! The column is JSON. Each part of it names what it belongs to: the holds the lease that the row had then, the limit
//! the successor. The statements for exclusive locks do not touch the column, and programs of earlier versions do not
//! know it. When they write another lease or successor, what the column says of the former one counts for nothing.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::clock::Timestamp;
use super::{Action, LockRow, SharedHold, Successor};

/// Whether the action is one on a shared hold. A release does not say so.
pub(crate) fn asks_to_share(action: &Action) -> bool {
    match action {
        Action::Acquire(ask) => ask.limit.is_some(),
        Action::Extend(ask) => ask.share.is_some(),
        _ => false,
    }
}

/// The content of the column.
#[derive(Debug, Serialize, Deserialize)]
struct Column {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phase: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    holds: Vec<Hold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Next>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Hold {
    lease: Uuid,
    holder: String,
    count: u32,
    number: u64,
    /// In µs.
    until: i64,
}

/// The limit of a successor that waits for a shared hold.
#[derive(Debug, Serialize, Deserialize)]
struct Next {
    lease: Uuid,
    owner: Uuid,
    limit: u32,
}

impl Next {
    fn is_of(&self, next: &Successor) -> bool {
        (self.lease, self.owner) == (next.lease_id, next.owner)
    }
}

/// What to write for this row; `None` is NULL.
pub(crate) fn column(row: &LockRow) -> Option<String> {
    let hold = |hold: &SharedHold| Hold {
        lease: hold.lease_id,
        holder: hold.holder.clone(),
        count: hold.count,
        number: hold.number,
        until: hold.expire_at.as_micros(),
    };
    let next = row.next.as_ref().and_then(|next| {
        Some(Next {
            lease: next.lease_id,
            owner: next.owner,
            limit: next.limit?,
        })
    });
    let column = Column {
        phase: (!row.shared.is_empty()).then_some(row.lease_id),
        holds: row.shared.iter().map(hold).collect(),
        next,
    };
    let says = column.phase.is_some() || column.next.is_some();
    says.then(|| serde_json::to_string(&column).expect("numbers and text are valid JSON"))
}

/// Adds what was read to the row.
///
/// # Errors
/// It is not what [`column`] writes, nor what a later version adds to that.
pub(crate) fn add(row: &mut LockRow, text: &str) -> Result<(), serde_json::Error> {
    let column: Column = serde_json::from_str(text)?;
    if column.phase == Some(row.lease_id) {
        let hold = |hold: Hold| SharedHold {
            lease_id: hold.lease,
            holder: hold.holder,
            count: hold.count,
            number: hold.number,
            expire_at: Timestamp::from_micros(hold.until),
        };
        row.shared = column.holds.into_iter().map(hold).collect();
    }
    if let Some((next, of)) = row.next.as_mut().zip(column.next)
        && of.is_of(next)
    {
        next.limit = Some(of.limit);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Key;

    const PHASE: Uuid = Uuid::from_u128(7);

    /// Shared by two, and a third one waits for a shared hold.
    fn shared() -> LockRow {
        let at = Timestamp::from_micros;
        let mut row = LockRow::new(Key::new(None, "k").unwrap(), at(5));
        row.lease_id = PHASE;
        let mut hostile = SharedHold::new(Uuid::max(), "h\u{f6}st \"two\" \\ \n\u{1f512}", at(i64::MAX));
        (hostile.count, hostile.number) = (u32::MAX, u64::MAX);
        row.shared = vec![SharedHold::new(Uuid::from_u128(1), "host/1 one", at(-9)), hostile];
        row.next = Some(Successor {
            lease_id: Uuid::from_u128(3),
            owner: Uuid::from_u128(4),
            holder: String::new(),
            ttl: Duration::from_secs(1),
            spare_tokens: 0,
            since: at(1),
            until: at(9),
            limit: Some(u32::MAX),
        });
        row
    }

    /// The row that the other columns give, with what the column says.
    fn read(other_columns: impl FnOnce(&mut LockRow)) -> LockRow {
        let text = column(&shared()).unwrap();
        let mut row = shared();
        row.shared.clear();
        row.next.as_mut().unwrap().limit = None;
        other_columns(&mut row);
        add(&mut row, &text).unwrap();
        row
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(|_| ()), shared());
        let mut holds_only = shared();
        holds_only.next = None;
        assert_eq!(read(|row| row.next = None), holds_only);
        let text = column(&holds_only).unwrap();
        assert!(
            text.starts_with(r#"{"phase":"00000000-0000-0000-0000-000000000007","holds":[{"lease":"#),
            "{text}"
        );
        assert!(!text.contains("next"), "{text}");
    }

    #[test]
    fn what_belongs_to_another_lease_or_successor_counts_for_nothing() {
        let other = Uuid::from_u128(99);
        assert_eq!(read(|row| row.lease_id = other).shared, []);
        let limit = |change: fn(&mut Successor, Uuid)| {
            let row = read(|row| change(row.next.as_mut().unwrap(), other));
            assert_eq!(row.shared.len(), 2);
            row.next.unwrap().limit
        };
        assert_eq!(limit(|_, _| ()), Some(u32::MAX));
        assert_eq!(limit(|next, other| next.lease_id = other), None);
        assert_eq!(limit(|next, other| next.owner = other), None);
    }

    #[test]
    fn a_row_that_nobody_shares_has_nothing_in_the_column() {
        let mut row = shared();
        row.shared.clear();
        let waits_only = column(&row).unwrap();
        assert!(waits_only.starts_with(r#"{"next":{"#), "{waits_only}");
        row.next.as_mut().unwrap().limit = None;
        assert_eq!(column(&row), None);
        row.next = None;
        assert_eq!(column(&row), None);
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over_and_other_text_is_an_error() {
        let mut row = shared();
        row.shared.clear();
        let later = r#"{"phase":"00000000-0000-0000-0000-000000000007","holds":[{"lease":"00000000-0000-0000-0000-000000000001",
            "holder":"h","count":2,"number":3,"until":4,"more":[]}],"more":1}"#;
        add(&mut row, later).unwrap();
        assert_eq!((row.shared[0].count, row.shared[0].number), (2, 3));
        for text in ["", "[]7", r#"{"phase":"x"}"#, r#"{"holds":[{}]}"#] {
            assert!(add(&mut row, text).is_err(), "{text}");
        }
    }
}
