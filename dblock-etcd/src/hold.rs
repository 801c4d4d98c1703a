//! Extending and releasing.

use std::time::Duration;

use dblock::store::{Extend, Outcome, Request, StoreError, StoreErrorKind};
use etcd_client::Client;
use futures_util::future::{join, join_all};

use crate::Answer;
use crate::keys::Keys;
use crate::look::{MOST_KEYS, Seen, Write, Written, grant, keep_alive, left, look, revoke, write};
use crate::row::{Stored, etcd_lease, longer_lease, seconds};

/// Answers extends.
///
/// The read comes first, and not only for what it reads. A leader that was stopped and wakes up answers renewals for a moment
/// although another member leads by now. It answers no read of the whole cluster until it has learned of that.
pub(crate) async fn extend(client: &Client, names: &Keys, asks: &[(&Request, &Extend)]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for part in asks.chunks(MOST_KEYS) {
        answers.extend(extend_part(&mut client.clone(), names, part).await);
    }
    answers
}

async fn extend_part(client: &mut Client, names: &Keys, asks: &[(&Request, &Extend)]) -> Vec<Answer> {
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
                key: names.row(&request.key).into(),
                row: stored.row.clone(),
                mod_revision: stored.mod_revision,
                lease: *lease,
            });
        }
    }
    let mut written = write(client, &writes).await.into_iter();
    let mut answers = Vec::new();
    for (step, seen) in lengthened.into_iter().zip(&seen) {
        answers.push(match step {
            Err(error) => Err(error),
            Ok(None) => Ok(Outcome::Lost),
            Ok(Some(step)) if !step.changed => Ok(step.answer(seen)),
            Ok(Some(step)) => match written.next() {
                Some(Ok(Written::Done { .. })) => finish(client, &step).await.map(|()| step.answer(seen)),
                // Somebody else has changed the row: ask again.
                Some(Ok(Written::Changed(Ok(Some(_))))) => Ok(Outcome::Skipped),
                Some(Ok(Written::Changed(Ok(None)) | Written::NoLease)) => Ok(Outcome::Lost),
                Some(Ok(Written::Changed(Err(error))) | Err(error)) => Err(error),
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
        Outcome::extended(left, self.stored.row.revoked, seen.wanted_until.is_some())
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
        .row
        .clone()?
        .filter(|stored| stored.row.lease_id == request.lease_id)
    else {
        return Ok(None);
    };
    let mut stored = before.clone();
    if let Some(to) = &ask.handed_over {
        stored.hand_over(to);
    }
    stored.row.holds = ask.count;
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
pub(crate) async fn release(client: &Client, names: &Keys, requests: &[&Request]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for part in requests.chunks(MOST_KEYS) {
        answers.extend(release_part(&mut client.clone(), names, part).await);
    }
    answers
}

/// The lease is revoked, whatever the row says: an acquire that is still on its way then writes nothing. Beside it the row
/// is read, because a lease that was made longer has another id.
async fn release_part(client: &mut Client, names: &Keys, requests: &[&Request]) -> Vec<Answer> {
    let keys: Vec<_> = requests.iter().map(|request| &request.key).collect();
    let mut clients: Vec<_> = requests.iter().map(|_| client.clone()).collect();
    let mut steps = Vec::new();
    for (request, client) in requests.iter().zip(&mut clients) {
        steps.push(revoke(client, etcd_lease(request.lease_id)));
    }
    let (seen, revoked) = join(look(client, names, &keys), join_all(steps)).await;
    let seen = match seen {
        Ok(seen) => seen,
        // Some may have been revoked.
        Err(error) => {
            let error = StoreError::new(StoreErrorKind::Interrupted, error.to_string()).with_source(error);
            return requests.iter().map(|_| Err(error.clone())).collect();
        }
    };
    let mut answers = Vec::new();
    for ((request, seen), revoked) in requests.iter().zip(seen).zip(revoked) {
        answers.push(released(client, request, seen, revoked).await);
    }
    answers
}

async fn released(
    client: &mut Client,
    request: &Request,
    seen: Seen,
    revoked: Result<bool, StoreError>,
) -> Answer {
    let mut freed = revoked?;
    let moved = seen.row?.filter(|stored| stored.row.lease_id == request.lease_id);
    if let Some(stored) = moved.filter(|stored| stored.lease != etcd_lease(request.lease_id)) {
        freed |= revoke(client, stored.lease).await?;
    }
    Ok(if freed {
        Outcome::released(true, false)
    } else {
        Outcome::Lost
    })
}
