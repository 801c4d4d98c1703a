//! The choice of the rows that an operator sees, and their order.

use crate::key::Key;

use super::clock::Timestamp;
use super::row::LockRow;

/// A choice of the rows that `Admin::list` returns. The default is
/// every held row, ordered by key, at most 1,000.
///
/// ```
/// # use dblock_core as dblock;
/// use dblock::InspectFilter;
///
/// let orders = InspectFilter::new().prefix("order:").include_free().limit(100);
/// let stuck = InspectFilter::new().urgent_first().limit(50);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct InspectFilter {
    prefix: String,
    include_free: bool,
    urgent_first: bool,
    after: Option<RowPosition>,
    limit: u32,
}

/// The place of a row in a list, from [`LockRow::position`], for [`InspectFilter::after`]. Positions are
/// ordered as the rows of [`InspectFilter::urgent_first`] are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowPosition {
    /// 0 for a row that is held and that somebody waits for, 1 for one that is held, 2 for any other.
    pub rank: u8,
    /// When the lease was granted. Of a key that an open transaction keeps without one: the last lease.
    pub acquired_at: Timestamp,
    /// The key, as the row has it.
    pub key: Key,
}

impl LockRow {
    /// The place of this row in a list.
    pub fn position(&self) -> RowPosition {
        let rank = match (self.is_held(), self.is_wanted()) {
            (_, true) => 0,
            (true, false) => 1,
            (false, false) => 2,
        };
        RowPosition {
            rank,
            acquired_at: self.acquired_at,
            key: self.key.clone(),
        }
    }
}

impl InspectFilter {
    /// Every held row, ordered by key, at most 1,000.
    pub fn new() -> Self {
        Self {
            prefix: String::new(),
            include_free: false,
            urgent_first: false,
            after: None,
            limit: 1_000,
        }
    }

    /// Only keys that start with `prefix`, compared byte by byte. A manager puts its namespace before the
    /// prefix.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Free and expired rows too.
    pub fn include_free(mut self) -> Self {
        self.include_free = true;
        self
    }

    /// Orders the rows by urgency, not by key: held rows that somebody waits for, then the other held rows,
    /// then the rest. In each of the three groups the longest held comes first. The store reads all rows that
    /// have the prefix and sorts them.
    pub fn urgent_first(mut self) -> Self {
        self.urgent_first = true;
        self
    }

    /// Only rows after `position`, in the order of the list. It continues a list after the last row that it
    /// has returned. In a list by key, only the position's key counts.
    pub fn after(mut self, position: RowPosition) -> Self {
        self.after = Some(position);
        self
    }

    /// At most this many rows.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// For stores: the prefix that keys must have.
    pub fn get_prefix(&self) -> &str {
        &self.prefix
    }

    /// For stores: whether free and expired rows are wanted too.
    pub fn get_include_free(&self) -> bool {
        self.include_free
    }

    /// For stores: whether rows are ordered by [`LockRow::position`] and not by key.
    pub fn get_urgent_first(&self) -> bool {
        self.urgent_first
    }

    /// For stores: only rows behind this position are wanted.
    pub fn get_after(&self) -> Option<&RowPosition> {
        self.after.as_ref()
    }

    /// For stores: at most this many rows.
    pub fn get_limit(&self) -> u32 {
        self.limit
    }

    /// For stores that have all their rows in memory: those that the filter wants, in its order.
    pub fn select(&self, rows: impl IntoIterator<Item = LockRow>) -> Vec<LockRow> {
        let is_behind = |row: &LockRow| {
            self.after.as_ref().is_none_or(|after| {
                if self.urgent_first {
                    row.position() > *after
                } else {
                    row.key > after.key
                }
            })
        };
        let mut rows: Vec<_> = rows
            .into_iter()
            .filter(|row| row.key.as_str().starts_with(&self.prefix))
            .filter(|row| row.is_held() || self.include_free)
            .filter(is_behind)
            .collect();
        if self.urgent_first {
            rows.sort_by_cached_key(LockRow::position);
        } else {
            rows.sort_by(|one, other| one.key.cmp(&other.key));
        }
        rows.truncate(usize::try_from(self.limit).unwrap_or(usize::MAX));
        rows
    }

    /// For stores: no key of the list is less than this one.
    pub fn first_key(&self) -> &str {
        let after = self.after.as_ref().map_or("", |after| after.key.as_str());
        after.max(&self.prefix)
    }
}

impl Default for InspectFilter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::clock::Timestamp;

    /// A row with this key, that is held since `held_since`, and that somebody waits for.
    fn row(key: &str, held_since: Option<i64>, wanted: bool) -> LockRow {
        let now = Timestamp::from_micros(1_000);
        let later = now + Duration::from_secs(1);
        let mut row = LockRow::new(Key::new(None, key).unwrap(), now);
        if let Some(micros) = held_since {
            row.reentrant_count = 1;
            row.expire_at = later;
            row.acquired_at = Timestamp::from_micros(micros);
        }
        if wanted {
            row.wanted_until = later;
        }
        row
    }

    fn listed(filter: &InspectFilter) -> String {
        let rows = [
            row("ab", Some(3), false),
            row("b", Some(1), false),
            row("ad", Some(2), true),
            row("ac", None, true),
            row("aa", Some(1), true),
        ];
        let keys: Vec<_> = filter
            .select(rows)
            .into_iter()
            .map(|row| row.key.to_string())
            .collect();
        keys.join(" ")
    }

    #[test]
    fn a_filter_selects_rows_and_orders_them() {
        let all = InspectFilter::new;
        let behind = |key, held_since, wanted| row(key, held_since, wanted).position();
        assert_eq!(listed(&all()), "aa ab ad b");
        assert_eq!(listed(&all().prefix("a")), "aa ab ad");
        assert_eq!(listed(&all().include_free()), "aa ab ac ad b");
        assert_eq!(listed(&all().limit(2)), "aa ab");
        assert_eq!(listed(&all().after(behind("ab", None, false))), "ad b");
        let urgent = all().include_free().urgent_first();
        assert_eq!(listed(&urgent), "aa ad b ab ac");
        assert_eq!(listed(&urgent.after(behind("ad", Some(2), true))), "b ab ac");
    }

    #[test]
    fn a_store_reads_what_was_set() {
        let of_all = InspectFilter::default();
        assert_eq!((of_all.get_prefix(), of_all.get_limit()), ("", 1_000));
        assert!(!of_all.get_include_free() && !of_all.get_urgent_first());
        assert_eq!((of_all.get_after(), of_all.first_key()), (None, ""));
        let after = row("b", None, false).position();
        let filter = of_all
            .prefix("a")
            .limit(7)
            .include_free()
            .urgent_first()
            .after(after.clone());
        assert_eq!((filter.get_prefix(), filter.get_limit()), ("a", 7));
        assert!(filter.get_include_free() && filter.get_urgent_first());
        assert_eq!((filter.get_after(), filter.first_key()), (Some(&after), "b"));
        assert_eq!(filter.prefix("c").first_key(), "c");
    }
}
