//! Reading and writing rows. All keys of a call in one transaction of etcd.

use dblock::Key;
use dblock::store::StoreError;
use etcd_client::{
    Client, Compare, CompareOp, Error, KeyValue, LeaseGrantOptions, PutOptions, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};

use crate::error;
use crate::keys::Keys;
use crate::row::{Row, Stored};

/// The keys of one transaction. etcd takes 128 operations, the nested ones included, and each key may need two.
pub(crate) const MOST_KEYS: usize = 60;

/// One key, as it was read.
pub(crate) struct Seen {
    pub(crate) row: Result<Option<Stored>, StoreError>,
    /// Until when somebody waits, by the clock of that process.
    pub(crate) wanted_until: Option<i64>,
}

/// Reads the keys, as the whole cluster sees them.
pub(crate) async fn look(client: &mut Client, names: &Keys, keys: &[&Key]) -> Result<Vec<Seen>, StoreError> {
    let gets: Vec<TxnOp> = keys
        .iter()
        .flat_map(|key| [names.row(key), names.wanted(key)])
        .map(|key| TxnOp::get(key, None))
        .collect();
    let answer = client
        .txn(Txn::new().and_then(gets))
        .await
        .map_err(error::of_harmless)?;
    let mut found = answer.op_responses().into_iter().map(|answer| first_of(&answer));
    Ok(keys
        .iter()
        .map(|_| Seen {
            row: found.next().flatten().as_ref().map(Stored::read).transpose(),
            wanted_until: found.next().flatten().map(|kv| wanted_until(&kv)),
        })
        .collect())
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

/// A row to be written, if its key is still as it was read.
pub(crate) struct Write {
    /// The etcd key.
    pub(crate) key: Vec<u8>,
    pub(crate) row: Row,
    /// 0 for a key that was not there.
    pub(crate) mod_revision: i64,
    pub(crate) lease: i64,
}

/// The outcome of a [`Write`].
pub(crate) enum Written {
    Done {
        revision: i64,
    },
    /// The key has changed, to this row; `None` if it is gone.
    Changed(Result<Option<Stored>, StoreError>),
    /// The lease was revoked, or has expired.
    NoLease,
}

/// Writes all rows whose keys are unchanged. A lease that is gone fails the whole transaction, and then nothing of it was
/// carried out; so each is written by itself. Another failure is that of each.
pub(crate) async fn write(client: &mut Client, writes: &[Write]) -> Vec<Result<Written, StoreError>> {
    if writes.is_empty() {
        return Vec::new();
    }
    match write_all(client, writes).await {
        Ok(written) => written,
        Err(error) if error::is_no_lease(&error) && writes.len() == 1 => vec![Ok(Written::NoLease)],
        Err(error) if error::is_no_lease(&error) => {
            let mut written = Vec::new();
            for one in writes {
                written.push(match write_all(client, std::slice::from_ref(one)).await {
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

async fn write_all(client: &mut Client, writes: &[Write]) -> Result<Vec<Result<Written, StoreError>>, Error> {
    let mut nested = Vec::new();
    for write in writes {
        let unchanged = Compare::mod_revision(&*write.key, CompareOp::Equal, write.mod_revision);
        let options = PutOptions::new().with_lease(write.lease);
        let put = TxnOp::put(&*write.key, write.row.to_value(), Some(options));
        let get = TxnOp::get(&*write.key, None);
        nested.push(TxnOp::txn(
            Txn::new().when([unchanged]).and_then([put]).or_else([get]),
        ));
    }
    let answer = client.txn(Txn::new().and_then(nested)).await?;
    let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
    let one = |answer: TxnOpResponse| match answer {
        TxnOpResponse::Txn(one) => Ok(written(&one, revision)),
        _ => Err(error::of_call(Error::Internal(
            "an answer of another kind".to_owned(),
        ))),
    };
    Ok(answer.op_responses().into_iter().map(one).collect())
}

fn written(answer: &TxnResponse, revision: i64) -> Written {
    if answer.succeeded() {
        return Written::Done { revision };
    }
    let found = answer.op_responses().first().and_then(first_of);
    Written::Changed(found.as_ref().map(Stored::read).transpose())
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
