//! Acquiring. The key is read first, so that a busy one costs neither a lease nor a write. A key that this process has
//! freed is probably free still: that is written at once.

use std::time::Duration;

use dblock_core::store::clock::micros;
use dblock_core::store::{Acquire, NEXT_TTL, Outcome, Request, StoreError, StoreErrorKind};
use etcd_client::{Client, LeaseGrantOptions, PutOptions};
use futures_util::future::{join, join_all};

use crate::Answer;
use crate::error;
use crate::keys::{Keys, Slot};
use crate::leases::Leases;
use crate::look::{
    self, Change, Condition, MOST_KEYS, Rows, Seen, Write, Written, grant, keep_alive, left, look, write,
};
use crate::places::{Place, Places};
use crate::row::{Row, Stored, first_token, has_room_for, now, place_lease, seconds};

type Ask<'a> = (&'a Request, &'a Acquire);

/// Answers acquires.
pub(crate) async fn acquire(
    client: &Client,
    names: &Keys,
    places: &Places,
    leases: &Leases,
    asks: &[Ask<'_>],
) -> Vec<Answer> {
    let parts = asks.chunks(MOST_KEYS);
    let parts = parts.map(|part| acquire_part(client.clone(), names, places, leases, part));
    let answers: Vec<Answer> = join_all(parts).await.into_iter().flatten().collect();
    for ((request, _), answer) in asks.iter().zip(&answers) {
        if matches!(answer, Err(error) if error.kind() != StoreErrorKind::Interrupted) {
            // It was not carried out, so no release will be sent.
            leases.forget(request.lease_id);
        }
    }
    answers
}

async fn acquire_part(
    client: Client,
    names: &Keys,
    places: &Places,
    leases: &Leases,
    asks: &[Ask<'_>],
) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = asks.iter().map(|_| None).collect();
    for _ in 0..2 {
        let open: Vec<usize> = (0..asks.len()).filter(|at| answers[*at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let part: Vec<_> = open.iter().map(|at| asks[*at]).collect();
        let tried = Box::pin(try_part(client.clone(), names, places, leases, &part)).await;
        for (at, answer) in open.into_iter().zip(tried) {
            answers[at] = answer;
        }
    }
    let answers = answers.into_iter();
    answers
        .map(|answer| answer.unwrap_or(Ok(Outcome::Skipped)))
        .collect()
}

/// `None`: the key was freed here, but others have taken it since. It is not freed here any more.
async fn try_part(
    mut client: Client,
    names: &Keys,
    places: &Places,
    leases: &Leases,
    asks: &[Ask<'_>],
) -> Vec<Option<Answer>> {
    let client = &mut client;
    let has_freed = |(request, ask): &Ask<'_>| leases.has_freed(&request.key, seconds(ask.ttl));
    let freed: Vec<bool> = asks.iter().map(has_freed).collect();
    let others = asks.iter().zip(&freed).filter(|(_, freed)| !**freed);
    let keys: Vec<_> = others.map(|((request, _), _)| &request.key).collect();
    let mut looked = match look(client, names, &keys).await {
        Ok(seen) => seen.into_iter(),
        Err(error) => return asks.iter().map(|_| Some(Err(error.clone()))).collect(),
    };
    let seen = |freed: &bool| if *freed { None } else { looked.next() };
    let seen = freed.iter().map(seen);
    let seen: Vec<_> = seen.map(Option::unwrap_or_default).collect();
    let steps = asks.iter().zip(&seen);
    let steps = steps.map(|(ask, seen)| prepare(client.clone(), names, leases, *ask, seen));
    let first: Vec<Step> = join_all(steps)
        .await
        .into_iter()
        .map(|step| step.unwrap_or_else(|error| Step::Answered(Err(error))))
        .collect();
    let writes = first.iter().zip(asks);
    let writes: Vec<Write<'_>> = writes.filter_map(|(step, ask)| step.write(*ask)).collect();
    let takes = first
        .iter()
        .zip(asks)
        .filter(|(step, _)| matches!(step, Step::Take(_)));
    let takes: Vec<_> = takes.map(|(_, (request, _))| request.lease_id).collect();
    let other = client.clone();
    let (written, not_renewed) = join(write(client, names, &writes), leases.renew(&other, &takes)).await;
    let mut written = written.into_iter();
    let mut answers = Vec::new();
    for (((step, ask), seen), freed) in first.into_iter().zip(asks).zip(&seen).zip(freed) {
        let step = match step {
            Step::Answered(answer) => {
                answers.push(Some(answer));
                continue;
            }
            step => step,
        };
        let answer = match (written.next(), step) {
            (Some(Ok(written)), Step::Queue(holder)) => queued(client, places, *ask, written, &holder).await,
            (Some(Ok(Written::Done { .. })), _) if not_renewed.contains(&ask.0.lease_id) => {
                Err(error::unknown("etcd has not renewed the lease of the lock"))
            }
            (Some(Ok(written)), _) => granted(client, leases, *ask, written, seen).await,
            (Some(Err(error)), _) => Err(error),
            (None, _) => Err(error::unknown("etcd left out an answer")),
        };
        let is_taken = freed && matches!(answer, Ok(Outcome::Busy(_)));
        answers.push((!is_taken).then_some(answer));
    }
    answers
}

enum Step {
    Answered(Answer),
    /// The key is free, and there is this lease for it.
    Take(i64),
    /// Nobody is next behind this holder, and the lease is made.
    Queue(Stored),
}

impl Step {
    fn write<'a>(&self, (request, ask): Ask<'a>) -> Option<Write<'a>> {
        let (slot, ttl, lease, condition) = match self {
            Self::Answered(_) => return None,
            Self::Take(lease) => (Slot::First, ask.ttl, *lease, Condition::Free),
            Self::Queue(holder) => {
                let behind = Condition::Behind(holder.create_revision);
                let lease = place_lease(request.lease_id);
                (holder.slot.other(), next_ttl(ask), lease, behind)
            }
        };
        Some(Write {
            key: &request.key,
            slot,
            change: Change::Put(
                Row::new(request.lease_id, ask, ttl, matches!(self, Self::Queue(_))),
                lease,
            ),
            condition,
        })
    }
}

/// The length of a place as successor, and of the lease that a release passes on. It is counted from each
/// ask.
fn next_ttl(ask: &Acquire) -> Duration {
    ask.ttl.min(NEXT_TTL)
}

async fn prepare(
    mut client: Client,
    names: &Keys,
    leases: &Leases,
    (request, ask): Ask<'_>,
    seen: &Seen,
) -> Result<Step, StoreError> {
    let client = &mut client;
    if !has_room_for(ask.spare_tokens) {
        let message = format!(
            "{} spare tokens are more than this store can keep",
            ask.spare_tokens
        );
        return Err(StoreError::new(StoreErrorKind::Unsupported, message));
    }
    let Rows { holder, next } = seen.rows.clone()?;
    let Some(holder) = holder else {
        let lease = leases.take(client, request.lease_id, &request.key, seconds(ask.ttl));
        return lease.await.map(Step::Take);
    };
    if holder.row.lease_id == request.lease_id {
        let answer = again(client, names, request, holder, seen.is_wanted()).await;
        return Ok(Step::Answered(answer));
    }
    let busy = Outcome::Busy(holder.told());
    let queues = ask.queue.is_some() && ask.wanted_for.is_some();
    match next {
        None if queues => {
            let lease = place_lease(request.lease_id);
            // One of an earlier ask has its whole length again from here on.
            if grant(client, lease, seconds(next_ttl(ask))).await? || keep_alive(client, lease).await? {
                return Ok(Step::Queue(holder));
            }
            return Ok(Step::Answered(Ok(busy)));
        }
        Some(next) if queues && next.row.lease_id == request.lease_id => {
            // From here on it lasts its whole length, whenever the holder releases.
            let lives = keep_alive(client, next.lease).await?;
            let place = lives.then(|| Outcome::queued(holder.told(), next_ttl(ask)));
            return Ok(Step::Answered(Ok(place.unwrap_or(busy))));
        }
        _ => {}
    }
    if let Some(length) = ask.wanted_for {
        want(client, names.wanted(&request.key), length, seen.wanted_until).await?;
    }
    Ok(Step::Answered(Ok(busy)))
}

/// The request was granted before: the same grant, with one hold.
async fn again(client: &mut Client, names: &Keys, request: &Request, stored: Stored, wanted: bool) -> Answer {
    let Some(left) = left(client, stored.lease).await? else {
        return Ok(Outcome::Lost);
    };
    let token = stored.fence_token();
    if stored.row.holds != 1 {
        let mut row = stored.row.clone();
        row.holds = 1;
        let one = Write {
            key: &request.key,
            slot: stored.slot,
            change: Change::Put(row, stored.lease),
            condition: Condition::Unchanged(stored.mod_revision),
        };
        let written = write(client, names, &[one]).await.remove(0)?;
        if !matches!(written, Written::Done { .. }) {
            return Ok(Outcome::Skipped);
        }
    }
    Ok(Outcome::granted(token, whole(left)).with_wanted(wanted))
}

async fn granted(
    client: &mut Client,
    leases: &Leases,
    (request, ask): Ask<'_>,
    written: Written,
    seen: &Seen,
) -> Answer {
    let rows = match written {
        Written::Done { revision, other } => {
            leases.granted(request.lease_id, revision);
            let token = first_token(revision, Slot::First);
            return Ok(Outcome::granted(token, ask.ttl).with_wanted(other || seen.is_wanted()));
        }
        // It had ended before it was used again. While the host was suspended, the others that rest may have,
        // too.
        Written::NoLease => {
            leases.forget(request.lease_id);
            leases.forget_idle();
            return Ok(Outcome::Skipped);
        }
        Written::Changed(rows) => rows?,
    };
    match rows.holder {
        Some(stored) if stored.row.lease_id == request.lease_id => {
            let left = left(client, stored.lease).await?;
            Ok(left.map_or(Outcome::Lost, |left| {
                Outcome::granted(stored.fence_token(), whole(left)).with_wanted(seen.is_wanted())
            }))
        }
        stored => {
            leases.rest(client, vec![(request.lease_id, None)]).await;
            Ok(too_late(stored))
        }
    }
}

async fn queued(
    client: &mut Client,
    places: &Places,
    (request, ask): Ask<'_>,
    written: Written,
    holder: &Stored,
) -> Answer {
    match written {
        Written::Done { revision, .. } => {
            let place = Place {
                lease_id: request.lease_id,
                fence_token: first_token(revision, holder.slot.other()),
                behind: holder.slot,
                revision,
            };
            places.insert(request.key.clone(), place);
            Ok(Outcome::queued(holder.told(), next_ttl(ask)))
        }
        // Withdrawn while it was asked for.
        Written::NoLease => Ok(Outcome::Lost),
        Written::Changed(rows) => {
            // A lease without a key does nothing; an error leaves it to its end.
            look::revoke(client, place_lease(request.lease_id)).await.ok();
            Ok(too_late(rows?.holder))
        }
    }
}

/// Somebody was faster.
fn too_late(holder: Option<Stored>) -> Outcome {
    holder.map_or(Outcome::Skipped, |stored| Outcome::Busy(stored.told()))
}

/// Says for `length` that somebody waits. It is only ever longer, and left alone while half of that is ahead.
async fn want(
    client: &mut Client,
    key: String,
    length: Duration,
    until: Option<i64>,
) -> Result<(), StoreError> {
    let now = now();
    if until.is_some_and(|until| until - now >= micros(length) / 2) {
        return Ok(());
    }
    let wanted = async {
        let lease = client
            .lease_grant(seconds(length), None::<LeaseGrantOptions>)
            .await?
            .id();
        let options = PutOptions::new().with_lease(lease);
        client
            .put(key, (now + micros(length)).to_string(), Some(options))
            .await
    };
    wanted.await.map(drop).map_err(error::of_harmless)
}

fn whole(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}
