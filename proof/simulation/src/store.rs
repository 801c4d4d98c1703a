//! The database: rows that change by `rules::carry_out`. A statement is executed, and later committed; its
//! rows are locked in between.

use dblock_core::Key;
use dblock_core::LockRow;
use dblock_core::store::clock::Timestamp;
use dblock_core::store::rules::{self, Take, Took};
use dblock_core::store::rules::{RecordEffect, carry_out, change_record, may_be_forgotten, still_busy};
use dblock_core::store::{self, Outcome, Record, Request, StoreError};
use uuid::Uuid;

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) rows: Vec<Row>,
    /// How far the clock has jumped, in µs.
    pub(crate) jumped: i64,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) committed: LockRow,
    /// The row as a statement or transaction has changed it, not committed yet.
    uncommitted: LockRow,
    /// The row that a crash leaves.
    durable: LockRow,
    /// What the statement that has changed it tells others.
    pub(crate) tells: Option<store::WakeUp>,
    pub(crate) lock: Lock,
    /// The record of the key, in the same three states.
    pub(crate) record: Option<Record>,
    uncommitted_record: Option<Record>,
    durable_record: Option<Record>,
}

impl Row {
    /// The leases that have the row, or may have it soon.
    pub(crate) fn leases(&self) -> impl Iterator<Item = Uuid> + use<> {
        let next = |row: &LockRow| row.next.as_ref().map_or(Uuid::nil(), |next| next.lease_id);
        let (now, then) = (&self.committed, &self.uncommitted);
        let shared = |row: &LockRow| row.shared.iter().map(|hold| hold.lease_id).collect::<Vec<_>>();
        let shared = shared(now).into_iter().chain(shared(then));
        [now.lease_id, next(now), then.lease_id, next(then)]
            .into_iter()
            .chain(shared)
    }
}

/// The owner of a row lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    Nobody,
    Batch(usize),
    Transaction(u32),
}

/// A wake-up, sent after a commit.
#[derive(Debug, Clone)]
pub(crate) struct WakeUp {
    pub(crate) key: usize,
    pub(crate) says: store::WakeUp,
}

const BEGIN: i64 = 1_000_000_000_000;

impl Database {
    pub(crate) fn new(keys: &[Key]) -> Self {
        let row = |key: &Key| Row {
            committed: LockRow::new(key.clone(), Timestamp::EPOCH),
            uncommitted: LockRow::new(key.clone(), Timestamp::EPOCH),
            durable: LockRow::new(key.clone(), Timestamp::EPOCH),
            tells: None,
            lock: Lock::Nobody,
            record: None,
            uncommitted_record: None,
            durable_record: None,
        };
        Self {
            rows: keys.iter().map(row).collect(),
            jumped: 0,
        }
    }

    pub(crate) fn clock(&self, now: u64) -> Timestamp {
        let micros = i64::try_from(now / 1000).unwrap_or(i64::MAX);
        Timestamp::from_micros(BEGIN + self.jumped + micros)
    }

    pub(crate) fn jump(&mut self, micros: i64) {
        self.jumped += micros;
    }

    /// Executes a request. From here on `batch` has the row locked, unless somebody else has it. `snapshot`:
    /// the row is first read without a lock, as it was last committed, and an acquire that would write
    /// nothing is answered from that.
    pub(crate) fn execute(
        &mut self,
        (key, request): (usize, &Request),
        (batch, now, snapshot): (usize, u64, bool),
    ) -> Result<Outcome, StoreError> {
        let clock = self.clock(now);
        let row = &mut self.rows[key];
        row.committed.now = clock;
        if snapshot && let Some(busy) = still_busy(request, &row.committed) {
            return Ok(busy);
        }
        if row.lock != Lock::Nobody {
            return Ok(Outcome::Skipped);
        }
        row.uncommitted.clone_from(&row.committed);
        row.uncommitted.now = clock;
        row.lock = Lock::Batch(batch);
        let carried_out = carry_out(request, &mut row.uncommitted)?;
        row.tells = carried_out.tells;
        let effect = carried_out.record.map_or(RecordEffect::Nothing, |change| {
            change_record(&request.key, &change, row.record.as_ref(), clock)
        });
        let written = effect != RecordEffect::Nothing;
        row.uncommitted_record = effect.left(row.record.clone());
        Ok(carried_out.outcome.with_recorded(written))
    }

    /// A transaction that has seen the row like this takes the key. Returns whether the row is now locked by it.
    pub(crate) fn take(
        &mut self,
        key: usize,
        ask: &Take,
        seen: &LockRow,
        (number, now): (u32, u64),
    ) -> (Took, bool) {
        let clock = self.clock(now);
        let row = &mut self.rows[key];
        let mut locks = false;
        let took = rules::take(ask, Some(seen), || {
            if row.lock != Lock::Nobody {
                return None;
            }
            locks = true;
            row.uncommitted.clone_from(&row.committed);
            row.uncommitted.now = clock;
            Some(&mut row.uncommitted)
        });
        if locks {
            row.lock = Lock::Transaction(number);
        }
        (took, locks)
    }

    /// That transaction ends. `writes`: it has written the row, and commits.
    pub(crate) fn end_take(&mut self, key: usize, number: u32, writes: bool) {
        let row = &mut self.rows[key];
        if row.lock != Lock::Transaction(number) {
            return;
        }
        row.lock = Lock::Nobody;
        if writes {
            std::mem::swap(&mut row.committed, &mut row.uncommitted);
            self.flush();
        }
    }

    /// The statement of a batch is committed for this row.
    pub(crate) fn commit(&mut self, key: usize, outcome: Option<&Outcome>, with_record: bool) {
        let row = &mut self.rows[key];
        row.lock = Lock::Nobody;
        std::mem::swap(&mut row.committed, &mut row.uncommitted);
        std::mem::swap(&mut row.record, &mut row.uncommitted_record);
        if with_record || outcome.is_none_or(|outcome| !may_be_forgotten(outcome)) {
            self.flush();
        }
    }

    /// The log is on the disk, with everything that was committed.
    pub(crate) fn flush(&mut self) {
        for row in &mut self.rows {
            row.durable.clone_from(&row.committed);
            row.durable_record.clone_from(&row.record);
        }
    }

    /// The server starts again. `forgets`: what was not flushed. Gives the leases that may keep a key busy
    /// from then on.
    pub(crate) fn crash(&mut self, forgets: bool) -> Vec<Uuid> {
        let mut kept = Vec::new();
        for row in &mut self.rows {
            row.lock = Lock::Nobody;
            if forgets && row.committed != row.durable {
                row.committed.clone_from(&row.durable);
                row.record.clone_from(&row.durable_record);
                kept.extend(row.leases());
            }
        }
        self.flush();
        kept
    }

    /// The committed row, with the clock's time.
    pub(crate) fn row(&mut self, key: usize, now: u64) -> &mut LockRow {
        let clock = self.clock(now);
        let row = &mut self.rows[key].committed;
        row.now = clock;
        row
    }
}
