//! Reading and writing rows: the keys of a call together, in as few transactions of etcd as it takes.

use dblock_core::Key;
use dblock_core::store::StoreError;
use etcd_client::{
    Client, Compare, CompareOp, Error, KeyValue, LeaseGrantOptions, PutOptions, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};
use futures_util::future::try_join_all;

use crate::error;
use crate::keys::{Keys, Slot};
use crate::row::{Row, Stored};

/// The locks that are written in one transaction, each in a nested one. etcd takes 128 operations on the way to
/// any of them.
pub(crate) const MOST_KEYS: usize = 120;

/// The locks that are read in one transaction, which has three operations for each. Reads are not nested: a
/// transaction with nested ones is a write of the whole cluster, even if it only reads.
const MOST_READ: usize = 42;

/// The rows of a lock. The first one holds it, and the other one is next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rows {
    pub(crate) holder: Option<Stored>,
    pub(crate) next: Option<Stored>,
}

/// One lock, as it was read; by default a free one.
pub(crate) struct Seen {
    pub(crate) rows: Result<Rows, StoreError>,
    /// Until when somebody waits, by the clock of that process.
    pub(crate) wanted_until: Option<i64>,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            rows: Ok(Rows::default()),
            wanted_until: None,
        }
    }
}

impl Rows {
    pub(crate) fn of(rows: impl IntoIterator<Item = Stored>) -> Self {
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by_key(|stored| stored.create_revision);
        let mut rows = rows.into_iter();
        Self {
            holder: rows.next(),
            next: rows.next(),
        }
    }

    /// Reads the answers to [`both`].
    fn read(answers: &[TxnOpResponse]) -> Result<Self, StoreError> {
        let found = answers.iter().zip(Slot::BOTH);
        let found = found.filter_map(|(answer, slot)| Some(Stored::read(&first_of(answer)?, slot)));
        found.collect::<Result<Vec<_>, _>>().map(Self::of)
    }
}

impl Seen {
    /// Whether somebody waits for the lock.
    pub(crate) fn is_wanted(&self) -> bool {
        let next = self.rows.as_ref().is_ok_and(|rows| rows.next.is_some());
        next || self.wanted_until.is_some()
    }
}

/// Reads both slots of a lock.
fn both(names: &Keys, key: &Key) -> [TxnOp; 2] {
    Slot::BOTH.map(|slot| TxnOp::get(names.row(slot, key), None))
}

/// Reads the keys, as the whole cluster sees them.
pub(crate) async fn look(client: &Client, names: &Keys, keys: &[&Key]) -> Result<Vec<Seen>, StoreError> {
    let parts = keys.chunks(MOST_READ);
    let parts = parts.map(|part| look_part(client.clone(), names, part));
    Ok(try_join_all(parts).await?.into_iter().flatten().collect())
}

async fn look_part(mut client: Client, names: &Keys, keys: &[&Key]) -> Result<Vec<Seen>, StoreError> {
    let gets = keys.iter().flat_map(|key| {
        let [one, two] = both(names, key);
        [one, two, TxnOp::get(names.wanted(key), None)]
    });
    let gets: Vec<TxnOp> = gets.collect();
    let answer = client
        .txn(Txn::new().and_then(gets))
        .await
        .map_err(error::of_harmless)?;
    let answers = answer.op_responses();
    let seen: Vec<Seen> = answers
        .chunks_exact(3)
        .map(|answers| Seen {
            rows: Rows::read(answers),
            wanted_until: first_of(&answers[2]).map(|kv| wanted_until(&kv)),
        })
        .collect();
    if seen.len() < keys.len() {
        return Err(another_kind());
    }
    Ok(seen)
}

fn another_kind() -> StoreError {
    error::of_call(Error::Internal("an answer of another kind".to_owned()))
}

pub(crate) fn wanted_until(kv: &KeyValue) -> i64 {
    // The key alone says that somebody waits, whatever its value is.
    kv.value_str()
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

fn first_of(answer: &TxnOpResponse) -> Option<KeyValue> {
    match answer {
        TxnOpResponse::Get(answer) => answer.kvs().first().cloned(),
        _ => None,
    }
}

/// A row to be changed, if the lock is still as it was read.
pub(crate) struct Write<'a> {
    pub(crate) key: &'a Key,
    pub(crate) slot: Slot,
    pub(crate) change: Change,
    pub(crate) condition: Condition,
}

/// The change of a row.
pub(crate) enum Change {
    /// It becomes this one, under this etcd lease.
    Put(Row, i64),
    Delete,
}

/// How a lock must still be.
pub(crate) enum Condition {
    /// Nobody has a row.
    Free,
    /// The slot has a row of this revision.
    Unchanged(i64),
    /// The slot has a row that was created at this revision.
    Created(i64),
    /// The other slot has a row that was created at this revision, and nobody is next.
    Behind(i64),
}

impl Write<'_> {
    fn when(&self, names: &Keys) -> Vec<Compare> {
        let [own, other] = [self.slot, self.slot.other()].map(|slot| names.row(slot, self.key));
        let created = |key: String, at: i64| Compare::create_revision(key, CompareOp::Equal, at);
        match self.condition {
            Condition::Free => vec![created(own, 0), created(other, 0)],
            Condition::Unchanged(revision) => vec![Compare::mod_revision(own, CompareOp::Equal, revision)],
            Condition::Created(revision) => vec![created(own, revision)],
            Condition::Behind(revision) => vec![created(own, 0), created(other, revision)],
        }
    }
}

/// The outcome of a [`Write`].
pub(crate) enum Written {
    Done {
        revision: i64,
        /// Where a row was deleted, that of the other slot is there; where one was put, the note that somebody waits.
        other: bool,
    },
    /// The lock has changed, to these rows.
    Changed(Result<Box<Rows>, StoreError>),
    /// The lease was revoked, or has expired.
    NoLease,
}

/// Writes all rows whose keys are unchanged. A lease that is gone fails the whole transaction, and then
/// nothing of it was carried out; so each is written by itself. Another failure is that of each.
pub(crate) async fn write(
    client: &mut Client,
    names: &Keys,
    writes: &[Write<'_>],
) -> Vec<Result<Written, StoreError>> {
    if writes.is_empty() {
        return Vec::new();
    }
    match write_all(client, names, writes).await {
        Ok(written) => written,
        Err(error) if error::is_no_lease(&error) && writes.len() == 1 => vec![Ok(Written::NoLease)],
        Err(error) if error::is_no_lease(&error) => {
            let mut written = Vec::new();
            for one in writes {
                written.push(match write_all(client, names, std::slice::from_ref(one)).await {
                    Ok(mut one) => one.remove(0),
                    Err(error) if error::is_no_lease(&error) => Ok(Written::NoLease),
                    Err(error) => Err(error::of_call(error)),
                });
            }
            written
        }
        Err(error) => {
            let error = error::of_call(error);
            writes.iter().map(|_| Err(error.clone())).collect()
        }
    }
}

async fn write_all(
    client: &mut Client,
    names: &Keys,
    writes: &[Write<'_>],
) -> Result<Vec<Result<Written, StoreError>>, Error> {
    let mut nested = Vec::new();
    for write in writes {
        let key = names.row(write.slot, write.key);
        let change = match &write.change {
            Change::Put(row, lease) => {
                let options = PutOptions::new().with_lease(*lease);
                let wanted = TxnOp::get(names.wanted(write.key), None);
                vec![TxnOp::put(key, row.to_value(), Some(options)), wanted]
            }
            Change::Delete => {
                let other = names.row(write.slot.other(), write.key);
                vec![TxnOp::delete(key, None), TxnOp::get(other, None)]
            }
        };
        nested.push(TxnOp::txn(
            Txn::new()
                .when(write.when(names))
                .and_then(change)
                .or_else(both(names, write.key)),
        ));
    }
    let answer = client.txn(Txn::new().and_then(nested)).await?;
    let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
    let one = |answer: TxnOpResponse| match answer {
        TxnOpResponse::Txn(one) => Ok(written(&one, revision)),
        _ => Err(another_kind()),
    };
    Ok(answer.op_responses().into_iter().map(one).collect())
}

fn written(answer: &TxnResponse, revision: i64) -> Written {
    if answer.succeeded() {
        let other = answer.op_responses().get(1).and_then(first_of).is_some();
        return Written::Done { revision, other };
    }
    Written::Changed(Rows::read(&answer.op_responses()).map(Box::new))
}

/// Makes the lease, or finds it made by an earlier request that is sent again. Returns whether it is new.
pub(crate) async fn grant(client: &mut Client, lease: i64, ttl: i64) -> Result<bool, StoreError> {
    let options = LeaseGrantOptions::new().with_id(lease);
    match client.lease_grant(ttl, Some(options)).await {
        Ok(_) => Ok(true),
        Err(error) if error::is_same_lease(&error) => Ok(false),
        // A lease without a key does nothing, and ends by itself.
        Err(error) => Err(error::of_harmless(error)),
    }
}

/// Gives the lease its whole length again. Returns whether it was there.
pub(crate) async fn keep_alive(client: &mut Client, lease: i64) -> Result<bool, StoreError> {
    match client.lease_keep_alive(lease).await {
        Ok(_) => Ok(true),
        Err(error) if error::is_no_lease(&error) => Ok(false),
        Err(error) => Err(error::of_call(error)),
    }
}

/// Ends the lease, and deletes its key. Returns whether it was there.
pub(crate) async fn revoke(client: &mut Client, lease: i64) -> Result<bool, StoreError> {
    match client.lease_revoke(lease).await {
        Ok(_) => Ok(true),
        Err(error) if error::is_no_lease(&error) => Ok(false),
        Err(error) => Err(error::of_call(error)),
    }
}

/// The rest of the lease, in whole seconds. `None` when it is not there.
pub(crate) async fn left(client: &mut Client, lease: i64) -> Result<Option<i64>, StoreError> {
    match client.lease_time_to_live(lease, None).await {
        // -1 is etcd's answer for a lease that is not there.
        Ok(answer) => Ok(Some(answer.ttl()).filter(|left| *left >= 0)),
        Err(error) if error::is_no_lease(&error) => Ok(None),
        Err(error) => Err(error::of_harmless(error)),
    }
}
