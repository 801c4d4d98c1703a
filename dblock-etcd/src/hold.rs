//! Extending and releasing.

use std::time::Duration;

use dblock::store::{Extend, Outcome, Request, StoreError, StoreErrorKind};
use etcd_client::Client;
use futures_util::future::{join, join_all};

use crate::Answer;
use crate::keys::Keys;
use crate::look::{
    Condition, MOST_KEYS, Rows, Seen, Write, Written, grant, keep_alive, left, look, revoke, write,
};
use crate::places::Places;
use crate::row::{Stored, etcd_lease, longer_lease, place_lease, seconds};

/// Answers extends.
///
/// The read comes first, and not only for what it reads. A leader that was stopped and wakes up answers renewals for a moment
/// although another member leads by now. It answers no read of the whole cluster until it has learned of that.
pub(crate) async fn extend(client: &Client, names: &Keys, asks: &[(&Request, &Extend)]) -> Vec<Answer> {
    let parts = asks.chunks(MOST_KEYS);
    let parts = parts.map(|part| extend_part(client.clone(), names, part));
    join_all(parts).await.into_iter().flatten().collect()
}

async fn extend_part(mut client: Client, names: &Keys, asks: &[(&Request, &Extend)]) -> Vec<Answer> {
    let client = &mut client;
    let keys: Vec<_> = asks.iter().map(|(request, _)| &request.key).collect();
    let seen = match look(client, names, &keys).await {
        Ok(seen) => seen,
        Err(error) => return asks.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut steps = Vec::new();
    for (ask, seen) in asks.iter().zip(&seen) {
        steps.push(lengthen(client.clone(), *ask, seen));
    }
    let lengthened = join_all(steps).await;
    let mut writes = Vec::new();
    for ((request, _), step) in asks.iter().zip(&lengthened) {
        if let Ok(Some(Lengthened {
            stored,
            lease,
            changed: true,
            ..
        })) = step
        {
            writes.push(Write {
                key: &request.key,
                slot: stored.slot,
                row: stored.row.clone(),
                lease: *lease,
                condition: Condition::Unchanged(stored.mod_revision),
            });
        }
    }
    let mut written = match write(client, names, &writes).await {
        Ok(written) => written,
        Err(error) => writes.iter().map(|_| Err(error.clone())).collect(),
    }
    .into_iter();
    let mut answers = Vec::new();
    for (step, seen) in lengthened.into_iter().zip(&seen) {
        answers.push(match step {
            Err(error) => Err(error),
            Ok(None) => Ok(Outcome::Lost),
            Ok(Some(step)) if !step.changed => Ok(step.answer(seen)),
            Ok(Some(step)) => match written.next() {
                Some(Ok(Written::Done { .. })) => finish(client, &step).await.map(|()| step.answer(seen)),
                Some(Ok(Written::NoLease)) => Ok(Outcome::Lost),
                // Somebody else has changed the row, or it is gone: ask again.
                Some(Ok(Written::Changed(rows))) => rows.map(|_| Outcome::Skipped),
                Some(Err(error)) => Err(error),
                None => Err(StoreError::new(
                    StoreErrorKind::Interrupted,
                    "etcd left out an answer",
                )),
            },
        });
    }
    answers
}

/// An extend whose lease has its whole length again.
struct Lengthened {
    /// The row as it is to be written.
    stored: Stored,
    /// The lease that the key is to have.
    lease: i64,
    left: i64,
    changed: bool,
}

impl Lengthened {
    fn answer(&self, seen: &Seen) -> Outcome {
        let left = Duration::from_secs(u64::try_from(self.left).unwrap_or_default());
        Outcome::extended(left, self.stored.row.revoked, seen.is_wanted())
    }
}

/// `None` when the row is not that of the request's lease.
async fn lengthen(
    mut client: Client,
    (request, ask): (&Request, &Extend),
    seen: &Seen,
) -> Result<Option<Lengthened>, StoreError> {
    let client = &mut client;
    let Some(before) = seen
        .rows
        .clone()?
        .holder
        .filter(|stored| stored.row.lease_id == request.lease_id)
    else {
        return Ok(None);
    };
    let mut stored = before.clone();
    if let Some(to) = &ask.handed_over {
        stored.hand_over(to);
    }
    stored.row.holds = ask.count;
    stored.arrive();
    let mut lease = stored.lease;
    let wanted = seconds(ask.ttl);
    let left = if stored.row.revoked {
        left(client, lease).await?
    } else if wanted > stored.row.ttl {
        // A lease of etcd has its length for good, so the key moves to a longer one.
        lease = longer_lease(request.lease_id, wanted);
        stored.row.ttl = wanted;
        let is_there = grant(client, lease, wanted).await? || keep_alive(client, lease).await?;
        is_there.then_some(wanted)
    } else {
        let is_there = keep_alive(client, lease).await?;
        is_there.then_some(stored.row.ttl)
    };
    let changed = stored.row != before.row;
    Ok(left.map(|left| Lengthened {
        stored,
        lease,
        left,
        changed,
    }))
}

/// Ends the lease that the key has left.
async fn finish(client: &mut Client, step: &Lengthened) -> Result<(), StoreError> {
    if step.lease != step.stored.lease {
        revoke(client, step.stored.lease).await?;
    }
    Ok(())
}

/// Answers releases.
pub(crate) async fn release(
    client: &Client,
    names: &Keys,
    places: &Places,
    requests: &[&Request],
) -> Vec<Answer> {
    for request in requests {
        places.remove(&request.key, request.lease_id);
    }
    let parts = requests.chunks(MOST_KEYS);
    let parts = parts.map(|part| release_part(client.clone(), names, part));
    join_all(parts).await.into_iter().flatten().collect()
}

async fn release_part(mut client: Client, names: &Keys, requests: &[&Request]) -> Vec<Answer> {
    let keys: Vec<_> = requests.iter().map(|request| &request.key).collect();
    let seen = match look(&mut client, names, &keys).await {
        Ok(seen) => seen,
        Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
    };
    let steps = requests.iter().zip(seen);
    let steps = steps.map(|(request, seen)| released(client.clone(), request, seen));
    join_all(steps).await
}

/// Revokes the lease, by which its key is gone: the one that is next then holds the lock.
async fn released(mut client: Client, request: &Request, seen: Seen) -> Answer {
    let Rows { holder, next } = seen.rows?;
    let ours = |stored: &Option<Stored>| {
        let stored = stored.as_ref()?;
        (stored.row.lease_id == request.lease_id).then_some(stored.lease)
    };
    let (lease, outcome) = if let Some(lease) = ours(&holder) {
        (lease, Outcome::released(true, next.is_some()))
    } else if let Some(lease) = ours(&next) {
        (lease, Outcome::Withdrawn)
    } else {
        // An acquire may still be on its way. Without its lease it writes nothing.
        let mut other = client.clone();
        let (granted, queued) = join(
            revoke(&mut client, etcd_lease(request.lease_id)),
            revoke(&mut other, place_lease(request.lease_id)),
        )
        .await;
        let was_there = granted? | queued?;
        return Ok(if was_there {
            Outcome::released(true, false)
        } else {
            Outcome::Lost
        });
    };
    let was_there = revoke(&mut client, lease).await?;
    Ok(if was_there { outcome } else { Outcome::Lost })
}
