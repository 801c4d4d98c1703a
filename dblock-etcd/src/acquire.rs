//! Acquiring. The key is read first, so that a busy one costs neither a lease nor a write.

use std::time::Duration;

use dblock::store::clock::micros;
use dblock::store::{Acquire, Outcome, Request, StoreError, StoreErrorKind};
use etcd_client::{Client, LeaseGrantOptions, PutOptions};
use futures_util::future::join_all;

use crate::Answer;
use crate::error;
use crate::keys::Keys;
use crate::look::{self, MOST_KEYS, Seen, Write, Written, grant, left, look, write};
use crate::row::{Row, Stored, etcd_lease, first_token, has_room_for, now, seconds};

/// Answers acquires.
pub(crate) async fn acquire(client: &Client, names: &Keys, asks: &[(&Request, &Acquire)]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for part in asks.chunks(MOST_KEYS) {
        answers.extend(acquire_part(&mut client.clone(), names, part).await);
    }
    answers
}

async fn acquire_part(client: &mut Client, names: &Keys, asks: &[(&Request, &Acquire)]) -> Vec<Answer> {
    let keys: Vec<_> = asks.iter().map(|(request, _)| &request.key).collect();
    let seen = match look(client, names, &keys).await {
        Ok(seen) => seen,
        Err(error) => return asks.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut steps = Vec::new();
    for (ask, seen) in asks.iter().zip(&seen) {
        steps.push(prepare(client.clone(), names, *ask, seen));
    }
    let first = join_all(steps).await;
    let writes: Vec<Write> = first
        .iter()
        .zip(asks)
        .filter(|(step, _)| matches!(step, Step::Write))
        .map(|(_, (request, ask))| Write {
            key: names.row(&request.key).into(),
            row: Row::new(request.lease_id, ask),
            mod_revision: 0,
            lease: etcd_lease(request.lease_id),
        })
        .collect();
    let mut written = write(client, &writes).await.into_iter();
    let mut answers = Vec::new();
    for ((step, (request, ask)), seen) in first.into_iter().zip(asks).zip(&seen) {
        answers.push(match step {
            Step::Answered(answer) => answer,
            Step::Write => match written.next() {
                Some(Ok(written)) => granted(client, (request, ask), written, seen).await,
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

enum Step {
    Answered(Answer),
    /// The key is free, and the lease is made.
    Write,
}

async fn prepare(
    mut client: Client,
    names: &Keys,
    (request, ask): (&Request, &Acquire),
    seen: &Seen,
) -> Step {
    let client = &mut client;
    let prepared = async {
        if !has_room_for(ask.spare_tokens) {
            let message = format!(
                "{} spare tokens are more than this store can keep",
                ask.spare_tokens
            );
            return Err(StoreError::new(StoreErrorKind::Unsupported, message));
        }
        match seen.row.clone()? {
            None => grant(client, etcd_lease(request.lease_id), seconds(ask.ttl))
                .await
                .map(|_| None),
            Some(stored) => found(client, names, (request, ask), stored, seen.wanted_until)
                .await
                .map(Some),
        }
    };
    match prepared.await {
        Ok(None) => Step::Write,
        Ok(Some(outcome)) => Step::Answered(Ok(outcome)),
        Err(error) => Step::Answered(Err(error)),
    }
}

/// The answer for a key that is held.
async fn found(
    client: &mut Client,
    names: &Keys,
    (request, ask): (&Request, &Acquire),
    stored: Stored,
    wanted_until: Option<i64>,
) -> Answer {
    if stored.row.lease_id == request.lease_id {
        return again(client, names, request, stored, wanted_until.is_some()).await;
    }
    if let Some(length) = ask.wanted_for {
        want(client, names.wanted(&request.key), length, wanted_until).await?;
    }
    Ok(Outcome::Busy(stored.told()))
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
            key: names.row(&request.key).into(),
            row,
            mod_revision: stored.mod_revision,
            lease: stored.lease,
        };
        if !matches!(write(client, &[one]).await.remove(0)?, Written::Done { .. }) {
            return Ok(Outcome::Skipped);
        }
    }
    Ok(Outcome::granted(token, whole(left), None, wanted))
}

async fn granted(
    client: &mut Client,
    (request, ask): (&Request, &Acquire),
    written: Written,
    seen: &Seen,
) -> Answer {
    let stored = match written {
        Written::Done { revision } => {
            let wanted = seen.wanted_until.is_some();
            return Ok(Outcome::granted(first_token(revision), ask.ttl, None, wanted));
        }
        // Released while it was asked for.
        Written::NoLease => return Ok(Outcome::Lost),
        Written::Changed(found) => found?,
    };
    match stored {
        Some(stored) if stored.row.lease_id == request.lease_id => {
            let left = left(client, stored.lease).await?;
            let wanted = seen.wanted_until.is_some();
            Ok(left.map_or(Outcome::Lost, |left| {
                Outcome::granted(stored.fence_token(), whole(left), None, wanted)
            }))
        }
        Some(stored) => {
            // Somebody was faster. A lease without a key does nothing; an error leaves it to its end.
            look::revoke(client, etcd_lease(request.lease_id)).await.ok();
            Ok(Outcome::Busy(stored.told()))
        }
        None => Ok(Outcome::Skipped),
    }
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
