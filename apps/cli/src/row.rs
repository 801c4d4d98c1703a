//! A row of the lock table as this program shows it.

use dblock::store::clock::Timestamp;
use dblock::{LockRow, OpenTransaction};
use serde::Serialize;

/// The JSON of a row. Its fields are a promise: docs/cli.md lists them.
///
/// The ids of leases are left out: with them somebody could forge a wake-up.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) key: String,
    pub(crate) state: State,
    /// The holder, or the last one.
    pub(crate) holder: String,
    owner: String,
    pub(crate) fence_token: i64,
    pub(crate) holds: u32,
    /// By the store's clock, in RFC 3339.
    acquired_at: String,
    expires_at: String,
    pub(crate) held_seconds: Option<f64>,
    pub(crate) remaining_seconds: Option<f64>,
    pub(crate) revoked: bool,
    /// Somebody waits for it.
    pub(crate) wanted: bool,
    pub(crate) next: Option<Next>,
    /// Who shares the lock, one entry for each process. Then holder and owner are those of the first, who may have
    /// left.
    pub(crate) shared: Vec<Sharer>,
    /// The holders for people, in a few words.
    #[serde(skip)]
    pub(crate) holders: String,
    /// Its holder waits for somebody who waits for it. Known in a list only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadlock: Option<bool>,
    /// The open transaction that keeps it. Then holder, owner and token are those of the last owner, unless
    /// there is a lease too.
    pub(crate) transaction: Option<Transaction>,
}

/// An open transaction that keeps a key.
#[derive(Debug, Serialize)]
pub(crate) struct Transaction {
    session: Option<u64>,
    application: Option<String>,
    /// By the store's clock, in RFC 3339.
    since: Option<String>,
    prepared: Option<String>,
    open_seconds: Option<f64>,
    /// For people.
    #[serde(skip)]
    pub(crate) text: String,
}

impl Transaction {
    fn of(transaction: OpenTransaction, now: Timestamp) -> Self {
        Self {
            text: transaction.to_string(),
            session: transaction.session,
            application: transaction.application,
            since: transaction.since.map(time),
            prepared: transaction.prepared,
            open_seconds: transaction.since.map(|since| now.since(since).as_secs_f64()),
        }
    }
}

/// A process that shares the lock.
#[derive(Debug, Serialize)]
pub(crate) struct Sharer {
    pub(crate) holder: String,
    /// How many calls of the process are inside.
    pub(crate) count: u32,
    expires_at: String,
}

/// The process that gets the lock next.
#[derive(Debug, Serialize)]
pub(crate) struct Next {
    pub(crate) holder: String,
    owner: String,
    pub(crate) waiting_seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Held,
    Free,
    Expired,
}

impl State {
    pub(crate) fn of(row: &LockRow) -> Self {
        match (row.is_held(), row.reentrant_count) {
            (true, _) => Self::Held,
            (false, 0) => Self::Free,
            (false, _) => Self::Expired,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Free => "free",
            Self::Expired => "expired",
        }
    }
}

impl From<LockRow> for Row {
    fn from(row: LockRow) -> Self {
        let state = State::of(&row);
        // A transaction has no lease.
        let held = row.has_lease();
        let since = |from| row.now.since(from).as_secs_f64();
        let wanted = row.is_wanted();
        let next = row.live_successor().cloned();
        let transaction = row.transaction.clone();
        let transaction = transaction.map(|transaction| Transaction::of(transaction, row.now));
        let of_transaction = transaction
            .as_ref()
            .and_then(|transaction| transaction.open_seconds);
        let shared = row.live_shared().map(|hold| Sharer {
            holder: hold.holder.clone(),
            count: hold.count,
            expires_at: time(hold.expire_at),
        });
        Self {
            key: row.key.as_str().to_owned(),
            state,
            shared: shared.collect(),
            holders: row.holders_in_short().into_owned(),
            holder: row.holder,
            owner: row.owner.to_string(),
            fence_token: row.fence_token,
            holds: row.reentrant_count,
            acquired_at: time(row.acquired_at),
            expires_at: time(row.expire_at),
            held_seconds: held.then(|| since(row.acquired_at)).or(of_transaction),
            remaining_seconds: held.then(|| row.expire_at.since(row.now).as_secs_f64()),
            revoked: row.revoked && held,
            wanted,
            deadlock: None,
            transaction,
            next: next.map(|next| Next {
                holder: next.holder,
                owner: next.owner.to_string(),
                waiting_seconds: since(next.since),
            }),
        }
    }
}

/// The end of the year 9999: RFC 3339 has no later moment.
const LATEST: Timestamp = Timestamp::from_micros(253_402_300_799_999_999);

/// A moment in RFC 3339.
pub(crate) fn time(moment: Timestamp) -> String {
    humantime::format_rfc3339_micros(moment.min(LATEST).into()).to_string()
}

#[cfg(test)]
mod tests {
    use dblock::Key;
    use dblock::store::SharedHold;

    use super::*;

    #[test]
    fn a_key_that_an_open_transaction_keeps_is_held() {
        let mut row = LockRow::new(Key::new(None, "a").unwrap(), Timestamp::from_micros(5_000_000));
        let mut transaction = OpenTransaction::default();
        transaction.session = Some(4711);
        transaction.since = Some(Timestamp::from_micros(3_500_000));
        row.transaction = Some(transaction);
        let shown = Row::from(row.clone());
        assert_eq!((shown.state, shown.held_seconds), (State::Held, Some(1.5)));
        assert_eq!(shown.remaining_seconds, None);
        let text = &shown.transaction.as_ref().unwrap().text;
        assert_eq!(text, "an open transaction (session 4711)");
        // It ends the lease, which may have expired.
        row.reentrant_count = 1;
        row.expire_at = row.now;
        assert_eq!(State::of(&row), State::Held);
    }

    #[test]
    fn those_who_share_are_listed() {
        let mut row = LockRow::new(Key::new(None, "a").unwrap(), Timestamp::from_micros(5_000_000));
        row.reentrant_count = 3;
        row.expire_at = Timestamp::from_micros(7_000_000);
        row.holder = "gone".into();
        let entry = |holder: &str, count, until| {
            let mut hold = SharedHold::new(uuid::Uuid::nil(), holder, Timestamp::from_micros(until));
            hold.count = count;
            hold
        };
        row.shared = vec![
            entry("gone", 1, 5_000_000),
            entry("a", 1, 6_000_000),
            entry("b", 2, 7_000_000),
        ];
        let shown = Row::from(row);
        assert_eq!(shown.holders, "3 share it");
        let json = serde_json::to_value(&shown.shared).unwrap();
        let expected = serde_json::json!([
            {"holder": "a", "count": 1, "expires_at": "1970-01-01T00:00:06.000000Z"},
            {"holder": "b", "count": 2, "expires_at": "1970-01-01T00:00:07.000000Z"},
        ]);
        assert_eq!(json, expected);
    }

    #[test]
    fn a_row_is_held_free_or_expired() {
        let mut row = LockRow::new(Key::new(None, "a").unwrap(), Timestamp::from_micros(5_000_000));
        assert_eq!(State::of(&row), State::Free);
        row.reentrant_count = 1;
        row.acquired_at = Timestamp::from_micros(2_000_000);
        row.expire_at = Timestamp::from_micros(6_500_000);
        row.wanted_until = Timestamp::from_micros(5_000_001);
        let shown = Row::from(row.clone());
        assert_eq!((shown.state, shown.wanted), (State::Held, true));
        assert_eq!(
            (shown.held_seconds, shown.remaining_seconds),
            (Some(3.0), Some(1.5))
        );
        assert_eq!(shown.expires_at, "1970-01-01T00:00:06.500000Z");
        row.expire_at = Timestamp::from_micros(i64::MAX);
        assert_eq!(Row::from(row.clone()).expires_at, "9999-12-31T23:59:59.999999Z");
        row.expire_at = row.now;
        let shown = Row::from(row);
        assert_eq!(
            (shown.state, shown.wanted, shown.held_seconds),
            (State::Expired, false, None)
        );
    }
}
