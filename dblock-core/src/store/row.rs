//! Rows as people and error messages see them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use super::clock::Timestamp;
use crate::error::rounded;
use crate::key::Key;
use crate::printable::printable;

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The call chain that holds it.
    pub owner: Uuid,
    /// Its host, process and function, for people.
    pub name: String,
    /// Its token.
    pub fence_token: i64,
    /// How long its lease still runs. The lock may stay busy for longer, because the lease may be renewed.
    /// Zero when the lease has expired. `None` when the store cannot tell: see
    /// [`Capabilities::clock`](crate::store::Capabilities::clock).
    pub remaining: Option<Duration>,
}

impl Holder {
    /// For stores: a holder with all its fields.
    pub fn new(
        owner: Uuid,
        name: impl Into<String>,
        fence_token: i64,
        remaining: impl Into<Option<Duration>>,
    ) -> Self {
        Self {
            owner,
            name: name.into(),
            fence_token,
            remaining: remaining.into(),
        }
    }
}

/// A row of the lock table. Times are those of the store's clock. A store [without a
/// clock](crate::store::Capabilities::clock) takes them from the clocks of the processes that wrote and read
/// the row, and estimates `expire_at`. Such times are for people only.
///
/// `Debug` shows the end of `lease_id` only, because all of it may be the secret of a ticket.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockRow {
    /// The key. A manager gives it as it was typed, and a store with the manager's namespace.
    pub key: Key,
    /// The call chain that holds or last held it. While several [share](Self::shared) the lock, the owner, the
    /// holder and `acquired_at` are those of the first of them, who may have left.
    pub owner: Uuid,
    /// How many holds the owner has; 0 is free. Of a shared lock, how many call chains are inside.
    pub reentrant_count: u32,
    /// When the lease ends.
    pub expire_at: Timestamp,
    /// The lease that holds or last held it.
    pub lease_id: Uuid,
    /// The last token given.
    pub fence_token: i64,
    /// The largest token that any owner may have been given.
    pub fence_ceiling: i64,
    /// Until this time somebody waits for the key; [`Timestamp::EPOCH`] when nobody has waited.
    pub wanted_until: Timestamp,
    /// When the lease was granted.
    pub acquired_at: Timestamp,
    /// Host, process and function that hold or last held it.
    pub holder: String,
    /// An operator has revoked the lease.
    pub revoked: bool,
    /// The lease that the release passes the row on to, if it is still live by then.
    pub next: Option<Successor>,
    /// Who shares the lock, one entry for each process. Empty while one owner has it alone. Without meaning while
    /// the row is not [held by a lease](Self::has_lease); each entry is without meaning once it has expired.
    pub shared: Vec<SharedHold>,
    /// The transaction that has locked the row and has not ended yet. Until it ends nobody else can get, revoke or
    /// free the key. `None` also where the store cannot tell, or was not asked: see
    /// [`Store::row`](crate::store::Store::row).
    pub transaction: Option<OpenTransaction>,
    /// The clock when the row was read.
    pub now: Timestamp,
}

impl fmt::Debug for LockRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockRow")
            .field("key", &self.key)
            .field("owner", &self.owner)
            .field("reentrant_count", &self.reentrant_count)
            .field("expire_at", &self.expire_at)
            .field("lease_id", &LeaseEnd(self.lease_id))
            .field("fence_token", &self.fence_token)
            .field("fence_ceiling", &self.fence_ceiling)
            .field("wanted_until", &self.wanted_until)
            .field("acquired_at", &self.acquired_at)
            .field("holder", &self.holder)
            .field("revoked", &self.revoked)
            .field("next", &self.next)
            .field("shared", &self.shared)
            .field("transaction", &self.transaction)
            .field("now", &self.now)
            .finish()
    }
}

/// Shows the last eight digits of a lease: enough to tell leases apart, and too few to adopt a ticket.
pub(super) struct LeaseEnd(pub(super) Uuid);

impl fmt::Debug for LeaseEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.simple().to_string();
        write!(f, "…{}", &digits[24..])
    }
}

/// A transaction that has not ended and keeps a key. It has taken the key, has ended the key's lease with its
/// commit, or has locked the row in another way, as a fence check does.
///
/// What it has written cannot be seen yet: the row still names the last owner. What is known of the transaction
/// depends on the database, and on what its user may see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenTransaction {
    /// The server's number of the session, as `pg_stat_activity.pid` on PostgreSQL.
    pub session: Option<u64>,
    /// The name that the application has given to its connection.
    pub application: Option<String>,
    /// When the transaction began.
    pub since: Option<Timestamp>,
    /// The name of a transaction that was prepared for a commit in two phases. It has no session.
    pub prepared: Option<String>,
}

/// Such as `an open transaction (session 4711, application "billing")`.
impl fmt::Display for OpenTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.prepared {
            return write!(f, "the prepared transaction \"{}\"", printable(name));
        }
        f.write_str("an open transaction")?;
        let application = self.application.as_deref().filter(|name| !name.is_empty());
        match (self.session, application) {
            (Some(session), Some(name)) => {
                write!(f, " (session {session}, application \"{}\")", printable(name))
            }
            (Some(session), None) => write!(f, " (session {session})"),
            (None, Some(name)) => write!(f, " (application \"{}\")", printable(name)),
            (None, None) => Ok(()),
        }
    }
}

impl OpenTransaction {
    /// What an operator is told who wants to end a lock that it keeps. `remedy` says how to end the transaction.
    #[doc(hidden)]
    pub fn keeps(&self, now: Timestamp, remedy: &str) -> String {
        let since = self.since.map(|since| now.since(since));
        let open = since.map_or_else(String::new, |open| format!(", open for {:?},", rounded(open)));
        format!("{self}{open} keeps the key, and nothing was done; {remedy}, or wait until it ends")
    }
}

/// What one process holds of a shared lock.
///
/// A store writes and reads all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedHold {
    /// The lease of the process.
    pub lease_id: Uuid,
    /// Host, process and function of the call that got it.
    pub holder: String,
    /// How many call chains of the process are inside.
    pub count: u32,
    /// The number of the last request that wrote it. That one, or an older one, changes nothing when it arrives again.
    pub number: u64,
    /// When it ends.
    pub expire_at: Timestamp,
}

impl SharedHold {
    /// One call chain is inside.
    pub fn new(lease_id: Uuid, holder: impl Into<String>, expire_at: Timestamp) -> Self {
        Self {
            lease_id,
            holder: holder.into(),
            count: 1,
            number: 0,
            expire_at,
        }
    }
}

/// The lease of another process that a row names as next. It means nothing when the row is free or expired,
/// or when `until` has passed.
///
/// A store writes and reads all of it. So a store that would drop a new field of a later version does not
/// compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    /// The lease.
    pub lease_id: Uuid,
    /// The call chain that waits.
    pub owner: Uuid,
    /// Its host, process and function.
    pub holder: String,
    /// How long the lease will run once the row is passed on to it.
    pub ttl: Duration,
    /// How many tokens to keep free above the lease's own.
    pub spare_tokens: u32,
    /// Since when it waits.
    pub since: Timestamp,
    /// Until when it is live.
    pub until: Timestamp,
    /// It waits for a shared hold with this limit: see [`Acquire::limit`](super::Acquire::limit).
    pub limit: Option<u32>,
}

impl LockRow {
    /// For stores: the row to use for a key that has none, on a clock that reads `now`. It is free, with no
    /// lease, and no token given yet. A store that has a row sets the other columns.
    pub fn new(key: Key, now: Timestamp) -> Self {
        Self {
            key,
            owner: Uuid::nil(),
            reentrant_count: 0,
            expire_at: Timestamp::EPOCH,
            lease_id: Uuid::nil(),
            fence_token: 0,
            fence_ceiling: 0,
            wanted_until: Timestamp::EPOCH,
            acquired_at: Timestamp::EPOCH,
            holder: String::new(),
            revoked: false,
            next: None,
            shared: Vec::new(),
            transaction: None,
            now,
        }
    }

    /// Somebody holds the lock: an owner whose lease has not expired, or an
    /// [open transaction](Self::transaction).
    pub fn is_held(&self) -> bool {
        self.has_lease() || self.transaction.is_some()
    }

    /// An owner holds the lock by a lease: the count is above 0 and the lease has not expired.
    pub fn has_lease(&self) -> bool {
        self.reentrant_count > 0 && self.expire_at > self.now
    }

    /// The lease is one that several may share: see [`shared`](Self::shared).
    pub fn is_shared(&self) -> bool {
        self.has_lease() && !self.shared.is_empty()
    }

    /// Who shares the lock now, one entry for each process. Nobody while one owner has it alone.
    pub fn live_shared(&self) -> impl Iterator<Item = &SharedHold> {
        let held = self.has_lease();
        self.shared
            .iter()
            .filter(move |hold| held && hold.expire_at > self.now)
    }

    /// Who holds the lock by a lease, or held it last, for people: such as `host/1 f`, or `host/1 f and 2 others`.
    /// The [`holder`](Self::holder) of a shared lock may have left.
    #[doc(hidden)]
    pub fn holders(&self) -> Cow<'_, str> {
        match self.sharers() {
            Some((first, 1)) => Cow::Borrowed(first),
            Some((first, 2)) => Cow::Owned(format!("{first} and 1 other")),
            Some((first, count)) => Cow::Owned(format!("{first} and {} others", count - 1)),
            None => Cow::Borrowed(&self.holder),
        }
    }

    /// The same in a few words, for a table: such as `host/1 f`, `host/1 f (shared)` or `3 share it`.
    #[doc(hidden)]
    pub fn holders_in_short(&self) -> Cow<'_, str> {
        match self.sharers() {
            Some((first, 1)) => Cow::Owned(format!("{first} (shared)")),
            Some((_, count)) => Cow::Owned(format!("{count} share it")),
            None => Cow::Borrowed(&self.holder),
        }
    }

    /// How many call chains are inside, as the row counts them: those who share the lock, in all processes together; 1 for
    /// an owner who has it alone, and 0 when nobody holds it. Those who share it without a limit enter and leave in the memory
    /// of their process, and the row follows.
    pub fn inside(&self) -> u32 {
        self.sharers()
            .map_or(u32::from(self.is_held()), |(_, count)| count)
    }

    /// One of those who share the lock, and how many they are.
    fn sharers(&self) -> Option<(&str, u32)> {
        let first = self.live_shared().next()?;
        let count = self
            .live_shared()
            .fold(0, |sum: u32, hold| sum.saturating_add(hold.count));
        Some((&first.holder, count))
    }

    /// How long the lease still runs. Zero when it has expired.
    pub fn remaining(&self) -> Duration {
        self.expire_at.since(self.now)
    }

    /// Somebody holds the lock and somebody else waits for it.
    pub fn is_wanted(&self) -> bool {
        self.is_held() && (self.wanted_until > self.now || self.live_successor().is_some())
    }

    /// The owner that gets the lock when the present one releases it; `None` if nobody is next.
    pub fn live_successor(&self) -> Option<&Successor> {
        self.next
            .as_ref()
            .filter(|next| self.has_lease() && next.until > self.now)
    }

    /// For each of these rows, whether its holder waits for somebody who waits for this lock, perhaps through others of
    /// the rows: probably a deadlock. A row names one waiting owner of another process at most, so a deadlock may not be
    /// seen; one that is seen may have ended since.
    pub fn deadlocks(rows: &[Self]) -> Vec<bool> {
        let waiting = |row: &Self| row.live_successor().map(|next| next.owner);
        let waits_at = (0..).zip(rows).filter_map(|(at, row)| Some((waiting(row)?, at)));
        let waits_at: HashMap<Uuid, usize> = waits_at.collect();
        let blocked_at = |at: &usize| waits_at.get(&rows[*at].owner).copied();
        let is_in_circle = |at| {
            let mut others = std::iter::successors(blocked_at(&at), blocked_at).take(rows.len());
            others.any(|other| other == at)
        };
        (0..rows.len()).map(is_in_circle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that `owner` holds and `next` waits for.
    fn held(owner: u128, next: Option<u128>) -> LockRow {
        let at = Timestamp::from_micros;
        let mut row = LockRow::new(Key::new(None, "k").unwrap(), at(5));
        (row.owner, row.reentrant_count, row.expire_at) = (Uuid::from_u128(owner), 1, at(9));
        row.next = next.map(|owner| Successor {
            lease_id: Uuid::nil(),
            owner: Uuid::from_u128(owner),
            holder: String::new(),
            ttl: Duration::from_secs(1),
            spare_tokens: 0,
            since: at(1),
            until: at(9),
            limit: None,
        });
        row
    }

    #[test]
    fn those_that_wait_for_each_other_are_found() {
        let rows = [
            held(1, Some(2)),
            held(2, Some(3)),
            held(3, Some(1)),
            held(4, Some(1)),
            held(5, None),
            held(6, Some(7)),
        ];
        // Whichever row names 1: it waits in one place only.
        let two = [held(1, Some(2)), held(2, Some(1)), held(3, Some(9))];
        assert_eq!(LockRow::deadlocks(&two), [true, true, false]);
        assert_eq!(LockRow::deadlocks(&rows[..3]), [true; 3]);
        assert_eq!(LockRow::deadlocks(&rows[1..]), [false; 5], "1 holds none of them");
        let mut over = two;
        over[1].now = Timestamp::from_micros(9);
        assert_eq!(LockRow::deadlocks(&over), [false; 3], "its lease has ended");
    }

    #[test]
    fn debug_shows_the_end_of_the_lease_only() {
        let mut row = LockRow::new(Key::new(None, "k").unwrap(), Timestamp::EPOCH);
        row.lease_id = Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef);
        let shown = format!("{row:?}");
        assert!(shown.contains("…89abcdef"), "{shown}");
        for secret in ["12345678", "4def", "8123"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn a_transaction_is_named_by_what_is_known_of_it() {
        let named = |change: fn(&mut OpenTransaction)| {
            let mut transaction = OpenTransaction::default();
            change(&mut transaction);
            transaction.to_string()
        };
        assert_eq!(named(|_| ()), "an open transaction");
        assert_eq!(
            named(|it| it.session = Some(7)),
            "an open transaction (session 7)"
        );
        let hostile = named(|it| {
            it.session = Some(7);
            it.application = Some("a\u{1b}[0m".into());
        });
        assert_eq!(
            hostile,
            "an open transaction (session 7, application \"a\\u{1b}[0m\")"
        );
        let prepared = named(|it| it.prepared = Some("booking".into()));
        assert_eq!(prepared, "the prepared transaction \"booking\"");
    }

    #[test]
    fn what_a_transaction_keeps_is_held_and_has_no_lease() {
        let mut row = LockRow::new(Key::new(None, "k").unwrap(), Timestamp::from_micros(5));
        assert!(!row.is_held());
        row.transaction = Some(OpenTransaction::default());
        row.wanted_until = Timestamp::from_micros(6);
        assert!(row.is_held() && !row.has_lease() && row.is_wanted());
        assert_eq!(row.position().rank, 0);
        row.wanted_until = row.now;
        assert!(!row.is_wanted());
        row.reentrant_count = 1;
        row.expire_at = Timestamp::from_micros(5);
        assert!(row.is_held() && !row.has_lease(), "it has expired");
    }

    #[test]
    fn those_who_share_are_counted_and_named() {
        let mut row = held(1, None);
        row.holder = "gone".into();
        assert_eq!(
            (row.holders(), row.holders_in_short()),
            ("gone".into(), "gone".into())
        );
        let entry = |holder: &str, count, until| SharedHold {
            count,
            ..SharedHold::new(Uuid::nil(), holder, Timestamp::from_micros(until))
        };
        row.shared = vec![entry("late", 4, 5), entry("a", 1, 9)];
        assert_eq!(
            (row.holders(), row.holders_in_short()),
            ("a".into(), "a (shared)".into())
        );
        row.shared.push(entry("b", 1, 9));
        assert_eq!(row.holders(), "a and 1 other");
        row.shared.push(entry("c", 2, 9));
        assert_eq!(
            (row.holders(), row.holders_in_short()),
            ("a and 3 others".into(), "4 share it".into())
        );
        assert_eq!((row.live_shared().count(), row.inside()), (3, 4));
        row.reentrant_count = 0;
        assert_eq!(row.live_shared().count(), 0, "the row is free");
        assert_eq!(row.holders(), "gone");
    }

    #[test]
    fn somebody_is_next_while_the_lease_and_the_place_live() {
        let at = Timestamp::from_micros;
        let is_next = |count, expire_at, until| {
            let mut row = LockRow::new(Key::new(None, "k").unwrap(), at(5));
            (row.reentrant_count, row.expire_at) = (count, at(expire_at));
            row.next = Some(Successor {
                lease_id: Uuid::nil(),
                owner: Uuid::nil(),
                holder: String::new(),
                ttl: Duration::from_secs(1),
                spare_tokens: 0,
                since: at(1),
                until: at(until),
                limit: None,
            });
            assert_eq!(row.is_wanted(), row.live_successor().is_some());
            row.live_successor().is_some()
        };
        assert!(is_next(1, 6, 6));
        assert!(!is_next(0, 6, 6) && !is_next(1, 5, 6) && !is_next(1, 6, 5));
    }

    #[test]
    fn an_operator_reads_how_long_the_transaction_is_open() {
        let mut transaction = OpenTransaction::default();
        let keeps = |it: &OpenTransaction| it.keeps(Timestamp::from_micros(3_000_000), "end it");
        let rest = "keeps the key, and nothing was done; end it, or wait until it ends";
        assert_eq!(keeps(&transaction), format!("an open transaction {rest}"));
        transaction.since = Some(Timestamp::from_micros(1_000_000));
        assert_eq!(
            keeps(&transaction),
            format!("an open transaction, open for 2s, {rest}")
        );
        transaction.application = Some("billing".into());
        assert_eq!(
            transaction.to_string(),
            "an open transaction (application \"billing\")"
        );
        transaction.application = Some(String::new());
        assert_eq!(transaction.to_string(), "an open transaction");
    }
}
