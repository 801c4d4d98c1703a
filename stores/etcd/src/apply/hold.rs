//! Extending, releasing, and passing on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dblock_core::store::{Extend, Outcome, Released, Request, StoreError, Transfer};
use etcd_client::Client;
use futures_util::future::{join, join_all};

use crate::Answer;
use crate::error;
use crate::keys::{Keys, Slot};
use crate::leases::Leases;
use crate::look::{
    Change, Condition, MOST_KEYS, Rows, Seen, Write, Written, grant, keep_alive, left, look, revoke, write,
};
use crate::places::Places;
use crate::row::{Stored, longer_lease, place_lease, seconds};

/// Answers extends.
///
/// The read comes first, and not only for what it reads. A leader that was stopped and wakes up answers
/// renewals for a moment although another member leads by now. It answers no read of the whole cluster until
/// it has learned of that.
pub(crate) async fn extend(
    client: &Client,
    names: &Keys,
    leases: &Leases,
    asks: &[(&Request, &Extend)],
) -> Vec<Answer> {
    let parts = asks.chunks(MOST_KEYS);
    let parts = parts.map(|part| extend_part(client.clone(), names, leases, part));
    let answers: Vec<Answer> = join_all(parts).await.into_iter().flatten().collect();
    for ((request, _), answer) in asks.iter().zip(&answers) {
        if matches!(answer, Ok(Outcome::Lost)) {
            // No release will be sent.
            leases.forget(request.lease_id);
        }
    }
    answers
}

async fn extend_part(
    mut client: Client,
    names: &Keys,
    leases: &Leases,
    asks: &[(&Request, &Extend)],
) -> Vec<Answer> {
    let client = &mut client;
    let keys: Vec<_> = asks.iter().map(|(request, _)| &request.key).collect();
    let seen = match look(client, names, &keys).await {
        Ok(seen) => seen,
        Err(error) => return asks.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut steps = Vec::new();
    for (ask, seen) in asks.iter().zip(&seen) {
        steps.push(lengthen(client.clone(), leases, *ask, seen));
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
                change: Change::Put(stored.row.clone(), *lease),
                condition: Condition::Unchanged(stored.mod_revision),
            });
        }
    }
    let mut written = write(client, names, &writes).await.into_iter();
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
                None => Err(error::unknown("etcd left out an answer")),
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
        Outcome::extended(left)
            .with_revoked(self.stored.row.revoked)
            .with_wanted(seen.is_wanted())
            .with_count(self.stored.row.holds)
    }
}

/// `None` when the row is not that of the request's lease.
async fn lengthen(
    mut client: Client,
    leases: &Leases,
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
    stored.row.holds = ask.count.max(1);
    stored.arrive();
    let mut lease = stored.lease;
    let (wanted, sent_at) = (seconds(ask.ttl), Instant::now());
    // A longer lease goes on until no more of it is left than is asked for.
    let is_longer = ask.count > 0 && wanted < stored.row.ttl;
    let rest = if stored.row.revoked || is_longer {
        left(client, lease).await?
    } else {
        Some(0)
    };
    let Some(rest) = rest else { return Ok(None) };
    let left = if stored.row.revoked || is_longer && rest >= wanted {
        Some(rest)
    } else if wanted == stored.row.ttl {
        let is_there = keep_alive(client, lease).await?;
        leases.renewed(request.lease_id, sent_at);
        is_there.then_some(wanted)
    } else {
        // A lease of etcd has its length for good, so the key moves to another one.
        lease = longer_lease(request.lease_id, wanted);
        leases.forget(request.lease_id);
        stored.row.ttl = wanted;
        let is_there = grant(client, lease, wanted).await? || keep_alive(client, lease).await?;
        is_there.then_some(wanted)
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

/// Answers pass-ons. The key stays, so its successor does too. It moves to an etcd lease of the fresh lease's
/// length.
pub(crate) async fn transfer(
    client: &Client,
    names: &Keys,
    leases: &Leases,
    asks: &[(&Request, &Transfer)],
) -> Vec<Answer> {
    let steps = asks
        .iter()
        .map(|ask| transfer_one(client.clone(), names, leases, *ask));
    join_all(steps).await
}

async fn transfer_one(
    mut client: Client,
    names: &Keys,
    leases: &Leases,
    (request, ask): (&Request, &Transfer),
) -> Answer {
    let client = &mut client;
    let seen = look(client, names, &[&request.key]).await?.remove(0);
    let wanted = seen.is_wanted();
    let Some(mut stored) = seen.rows?.holder else {
        return Ok(Outcome::Lost);
    };
    let granted = |stored: &Stored, left: i64| {
        let left = Duration::from_secs(u64::try_from(left).unwrap_or_default());
        Outcome::granted(stored.fence_token(), left).with_wanted(wanted)
    };
    if stored.row.lease_id == ask.to {
        leases.forget(request.lease_id);
        let left = left(client, stored.lease).await?;
        return Ok(left.map_or(Outcome::Lost, |left| granted(&stored, left)));
    }
    if stored.row.lease_id != request.lease_id || stored.row.revoked {
        return Ok(Outcome::Lost);
    }
    let (former, ttl) = (stored.lease, seconds(ask.ttl));
    stored.transfer(ask)?;
    let lease = longer_lease(ask.to, ttl);
    if !grant(client, lease, ttl).await? && !keep_alive(client, lease).await? {
        return Ok(Outcome::Skipped);
    }
    let put = Write {
        key: &request.key,
        slot: stored.slot,
        change: Change::Put(stored.row.clone(), lease),
        condition: Condition::Unchanged(stored.mod_revision),
    };
    match write(client, names, &[put]).await.remove(0)? {
        Written::Done { .. } => {
            leases.forget(request.lease_id);
            // What fails here is a lease without a key, which ends by itself.
            revoke(client, former).await.ok();
            Ok(granted(&stored, ttl))
        }
        // Somebody else has changed the row, or it is gone: ask again.
        Written::Changed(rows) => rows.map(|_| Outcome::Skipped),
        Written::NoLease => Ok(Outcome::Skipped),
    }
}

/// Answers releases.
pub(crate) async fn release(
    client: &Client,
    names: &Keys,
    places: &Places,
    leases: &Leases,
    requests: &[&Request],
) -> Vec<Answer> {
    for request in requests {
        places.remove(&request.key, request.lease_id);
    }
    let parts = requests.chunks(MOST_KEYS);
    let parts = parts.map(|part| release_part(client.clone(), names, leases, part));
    join_all(parts).await.into_iter().flatten().collect()
}

/// The lock goes to whoever is next when the holder's key is gone. The keys of grants that are known here are
/// deleted together, and their leases used again. Every other grant is looked up, and its lease revoked.
async fn release_part(
    mut client: Client,
    names: &Keys,
    leases: &Leases,
    requests: &[&Request],
) -> Vec<Answer> {
    let (mut writes, mut places, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (place, request) in requests.iter().enumerate() {
        match leases.created(request.lease_id) {
            Some(revision) => {
                places.push(place);
                writes.push(Write {
                    key: &request.key,
                    slot: Slot::First,
                    change: Change::Delete,
                    condition: Condition::Created(revision),
                });
            }
            None => others.push((place, *request)),
        }
    }
    let others = look_and_revoke(client.clone(), names, leases, others);
    let (written, revoked) = join(write(&mut client, names, &writes), others).await;
    let mut answers: BTreeMap<usize, Answer> = revoked.into_iter().collect();
    let mut released = Vec::new();
    for (place, written) in places.into_iter().zip(written) {
        let grant = requests[place].lease_id;
        let answer = written.map(|written| match written {
            Written::Done { other, .. } => {
                let freed = (!other).then(|| requests[place].key.clone());
                released.push((grant, freed));
                released_to(other)
            }
            Written::Changed(_) | Written::NoLease => {
                leases.forget(grant);
                Outcome::Lost
            }
        });
        answers.insert(place, answer);
    }
    leases.rest(&client, released).await;
    answers.into_values().collect()
}

/// The answer to a release that has ended the lease.
fn released_to(has_successor: bool) -> Outcome {
    Outcome::Released(if has_successor {
        Released::PassedOn
    } else {
        Released::Freed
    })
}

async fn look_and_revoke(
    client: Client,
    names: &Keys,
    leases: &Leases,
    requests: Vec<(usize, &Request)>,
) -> Vec<(usize, Answer)> {
    if requests.is_empty() {
        return Vec::new();
    }
    let keys: Vec<_> = requests.iter().map(|(_, request)| &request.key).collect();
    let seen = match look(&client, names, &keys).await {
        Ok(seen) => seen,
        Err(error) => {
            let failed = requests.iter().map(|(place, _)| (*place, Err(error.clone())));
            return failed.collect();
        }
    };
    let steps = requests.into_iter().zip(seen).map(|((place, request), seen)| {
        let client = client.clone();
        async move {
            (
                place,
                Box::pin(revoked(client, names, leases, request, seen)).await,
            )
        }
    });
    join_all(steps).await
}

/// Revokes the leases of a request, by which its key is gone. An extend of unknown outcome may move the key
/// to another lease at this moment. So the key is deleted too.
async fn revoked(mut client: Client, names: &Keys, leases: &Leases, request: &Request, seen: Seen) -> Answer {
    let Rows { holder, next } = seen.rows?;
    let ours = |stored: &Option<Stored>| {
        let stored = stored.as_ref()?;
        (stored.row.lease_id == request.lease_id).then_some((
            stored.lease,
            stored.slot,
            stored.create_revision,
        ))
    };
    let (own, outcome) = if let Some(own) = ours(&holder) {
        (own, released_to(next.is_some()))
    } else if let Some(own) = ours(&next) {
        (own, Outcome::Withdrawn)
    } else {
        // Acquires may still be on their way. Without their leases they write nothing.
        revoke(&mut client, place_lease(request.lease_id)).await?;
        let Some(lease) = leases.of(request.lease_id) else {
            return Ok(Outcome::Lost);
        };
        let was_there = revoke(&mut client, lease).await?;
        leases.forget(request.lease_id);
        return Ok(if was_there {
            Outcome::Released(Released::Freed)
        } else {
            Outcome::Lost
        });
    };
    let (lease, slot, created) = own;
    let delete = [Write {
        key: &request.key,
        slot,
        change: Change::Delete,
        condition: Condition::Created(created),
    }];
    let mut other = client.clone();
    let (mut written, was_there) = join(write(&mut client, names, &delete), revoke(&mut other, lease)).await;
    let is_deleted = matches!(written.remove(0)?, Written::Done { .. });
    let was_there = was_there?;
    leases.forget(request.lease_id);
    Ok(if is_deleted || was_there {
        outcome
    } else {
        Outcome::Lost
    })
}
