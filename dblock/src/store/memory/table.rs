//! The rows and their clock.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use uuid::Uuid;

use crate::Key;
use crate::store::clock::Timestamp;
use crate::store::rules::{CarriedOut, RecordEffect, carry_out, change_record};
use crate::store::{
    LockRow, Outcome, Purged, Record, RecordChange, RecordWrite, Request, StoreError, WakeUp,
};

/// How long a free row is kept. The engine gives a request up after 2.5 seconds, and none arrives later. So by
/// then no late acquire needs the row to refuse it. Rows with an expired lease are left to the purge.
const FREE_ROWS_STAY: Duration = Duration::from_secs(10);

/// How many rows each request checks: more than the one that it may add, so that old rows go faster than new
/// ones come.
const LOOKS: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rows: BTreeMap<Key, Kept>,
    pub(super) records: BTreeMap<Key, Record>,
    /// The last reading of the clock, which never goes back, not even between runtimes.
    pub(super) now: Timestamp,
    /// The rows that requests made, by the time of their next check.
    looks: VecDeque<(Timestamp, Key)>,
}

/// A row, and when it became free.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) row: LockRow,
    freed_at: Timestamp,
}

impl Kept {
    pub(super) fn new(row: LockRow) -> Self {
        Self {
            row,
            freed_at: Timestamp::EPOCH,
        }
    }

    fn free(&mut self, now: Timestamp) {
        self.row.reentrant_count = 0;
        self.row.next = None;
        self.freed_at = now;
    }

    /// Nothing depends on the row any more: no lease, no waiter, and not the next token, which is the clock when
    /// there is no row.
    fn is_over(&self, now: Timestamp) -> bool {
        let row = &self.row;
        let old = self.freed_at + FREE_ROWS_STAY <= now;
        is_free(row) && old && row.wanted_until <= now && row.fence_ceiling < now.as_micros()
    }
}

fn is_free(row: &LockRow) -> bool {
    row.reentrant_count == 0
}

impl Table {
    /// Returns the answer, and what a store with wake-ups would tell.
    pub(super) fn apply(&mut self, request: &Request) -> Result<(Outcome, Option<WakeUp>), StoreError> {
        self.drop_old_rows();
        let now = self.now;
        let CarriedOut {
            outcome,
            tells,
            record,
            ..
        } = match self.rows.entry(request.key.clone()) {
            Entry::Occupied(mut place) => {
                let kept = place.get_mut();
                let was_free = is_free(&kept.row);
                kept.row.now = now;
                let carried_out = carry_out(request, &mut kept.row)?;
                if is_free(&kept.row) && !was_free {
                    kept.freed_at = now;
                }
                carried_out
            }
            Entry::Vacant(place) => {
                let mut row = LockRow::new(request.key.clone(), now);
                let carried_out = carry_out(request, &mut row)?;
                if carried_out.changed {
                    place.insert(Kept::new(row));
                    self.looks.push_back((now + FREE_ROWS_STAY, request.key.clone()));
                }
                carried_out
            }
        };
        let written = record.is_some_and(|change| self.change_record(&request.key, &change));
        Ok((outcome.with_recorded(written), tells))
    }

    /// Drops some of the rows that are over, so that a program with a key for each order does not keep them all.
    fn drop_old_rows(&mut self) {
        let now = self.now;
        for _ in 0..LOOKS {
            let Some((_, key)) = self.looks.pop_front_if(|(at, _)| *at <= now) else {
                return;
            };
            match self.rows.get(&key) {
                Some(kept) if kept.is_over(now) => drop(self.rows.remove(&key)),
                Some(_) => self.looks.push_back((now + FREE_ROWS_STAY, key)),
                None => {}
            }
        }
    }

    /// Returns whether the record was changed.
    fn change_record(&mut self, key: &Key, change: &RecordChange) -> bool {
        match change_record(key, change, self.records.get(key), self.now) {
            RecordEffect::Nothing => return false,
            RecordEffect::Written(record) => drop(self.records.insert(key.clone(), record)),
            RecordEffect::Deleted => drop(self.records.remove(key)),
        }
        true
    }

    pub(super) fn purge(&mut self, idle: Duration, after: Option<&Key>, limit: u32) -> Purged {
        let before = self.now - idle;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let looked_at = self.rows.range::<Key, _>((from, Bound::Unbounded)).take(limit);
        let looked_at: Vec<_> = looked_at
            .map(|(key, Kept { row, .. })| {
                let used = row.expire_at.max(row.wanted_until);
                let is_idle = used <= before && row.fence_ceiling <= before.as_micros();
                (key.clone(), is_idle)
            })
            .collect();
        let mut purged = Purged::default();
        for (key, _) in looked_at.iter().filter(|(_, idle)| *idle) {
            self.rows.remove(key);
            purged.rows += 1;
        }
        if looked_at.len() == limit {
            purged.next = looked_at.into_iter().next_back().map(|(key, _)| key);
        }
        purged
    }

    pub(super) fn write_record(&mut self, write: &RecordWrite) -> bool {
        let live = self.held(&write.key).map(|kept| kept.row.lease_id);
        if write.needs().is_some() && write.needs() != live || !self.change_record(&write.key, &write.change)
        {
            return false;
        }
        let now = self.now;
        let kept = self.held(&write.key);
        if let Some(kept) = kept.filter(|kept| Some(kept.row.lease_id) == write.ends()) {
            kept.free(now);
        }
        true
    }

    /// Frees the row of `key` if it is held, and refuses its lease from now on.
    pub(super) fn force_release(&mut self, key: &Key) -> bool {
        let now = self.now;
        let held = self.held(key);
        held.map(|kept| {
            kept.free(now);
            kept.row.lease_id = Uuid::now_v7();
        })
        .is_some()
    }

    /// The records, as they are now.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        let now = self.now;
        self.records.values().map(move |record| {
            let mut record = record.clone();
            record.now = now;
            record
        })
    }

    /// Whether the record's attempt holds the lock of its key.
    pub(super) fn has_lock(&self, record: &Record) -> bool {
        let row = self.rows.get(&record.key);
        row.is_some_and(|Kept { row, .. }| {
            row.reentrant_count > 0 && row.expire_at > self.now && row.fence_token <= record.fence_token
        })
    }

    pub(super) fn purge_records(&mut self, after: Option<&Key>, limit: u32) -> Purged {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let behind = |record: &Record| after.is_none_or(|after| record.key > *after);
        let looked_at: Vec<_> = self.records().filter(behind).take(limit).collect();
        let mut purged = Purged::default();
        for record in looked_at.iter().filter(|record| record.is_forgotten()) {
            self.records.remove(&record.key);
            purged.rows += 1;
        }
        if looked_at.len() == limit {
            purged.next = looked_at.into_iter().next_back().map(|record| record.key);
        }
        purged
    }

    /// The row of `key` if it is held.
    pub(super) fn held(&mut self, key: &Key) -> Option<&mut Kept> {
        let kept = self.rows.get_mut(key)?;
        kept.row.now = self.now;
        kept.row.is_held().then_some(kept)
    }
}
