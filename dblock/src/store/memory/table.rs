//! The rows and their clock.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::time::Duration;

use crate::key::Key;
use crate::store::clock::micros;
use crate::store::record::{self, Record, RecordChange, RecordWrite};
use crate::store::rules::carry_out_with_record;
use crate::store::{LockRow, Outcome, Purged, Request, StoreError};

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rows: BTreeMap<Key, LockRow>,
    pub(super) records: BTreeMap<Key, Record>,
    /// The last reading of the clock. It never goes back, not even between runtimes.
    pub(super) now: i64,
}

impl Table {
    pub(super) fn apply(&mut self, request: &Request) -> Result<Outcome, StoreError> {
        let (outcome, change) = match self.rows.entry(request.key.clone()) {
            Entry::Occupied(mut place) => {
                let row = place.get_mut();
                row.now = self.now;
                let (outcome, _, change) = carry_out_with_record(request, row)?;
                (outcome, change)
            }
            Entry::Vacant(place) => {
                let mut row = LockRow::new(request.key.clone(), self.now);
                let (outcome, changed, change) = carry_out_with_record(request, &mut row)?;
                if changed {
                    place.insert(row);
                }
                (outcome, change)
            }
        };
        let written = change.is_some_and(|change| self.change_record(&request.key, &change));
        Ok(outcome.with_record(written))
    }

    /// Returns whether the record was changed.
    fn change_record(&mut self, key: &Key, change: &RecordChange) -> bool {
        let Some(record) = record::carry_out(key, change, self.records.get(key), self.now) else {
            return false;
        };
        match record {
            Some(record) => drop(self.records.insert(key.clone(), record)),
            None => drop(self.records.remove(key)),
        }
        true
    }

    pub(super) fn purge(&mut self, idle: Duration, after: Option<&Key>, limit: u32) -> Purged {
        let before = self.now.saturating_sub(micros(idle));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let looked_at = self.rows.range::<Key, _>((from, Bound::Unbounded)).take(limit);
        let looked_at: Vec<_> = looked_at
            .map(|(key, row)| {
                let last_used = row.expire_at.max(row.wanted_until).max(row.fence_ceiling);
                (key.clone(), last_used <= before)
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
        if !self.change_record(&write.key, &write.change) {
            return false;
        }
        let row = self.held(&write.key);
        if let Some(row) = row.filter(|row| Some(row.lease_id) == write.ends()) {
            row.reentrant_count = 0;
            row.next = None;
        }
        true
    }

    /// The records, as they are now.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        let now = self.now;
        self.records.values().map(move |record| Record {
            now,
            ..record.clone()
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
    pub(super) fn held(&mut self, key: &Key) -> Option<&mut LockRow> {
        let row = self.rows.get_mut(key)?;
        row.now = self.now;
        row.is_held().then_some(row)
    }
}
