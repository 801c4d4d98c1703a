//! Sends requests: all in one script, or one script for each shard of a cluster.

use std::collections::BTreeMap;

use dblock_core::store::{Outcome, Request, StoreError};
use futures_util::future::join_all;

use crate::call::Call;
use crate::row;
use crate::{RedisStore, error, script};

type Answers = Vec<Result<Outcome, StoreError>>;

/// [`Store::apply`](dblock_core::store::Store::apply).
pub(crate) async fn apply(store: &RedisStore, requests: &[Request]) -> Answers {
    if requests.is_empty() {
        return Vec::new();
    }
    let unknown = requests
        .iter()
        .find_map(|request| script::check(&request.action).err());
    if let Some(error) = unknown {
        return failed(requests.len(), &error);
    }
    if let Err(error) = store.deployment.agree(&store.prefix).await {
        return failed(requests.len(), &error);
    }
    let mut shards: BTreeMap<Option<u16>, Vec<usize>> = BTreeMap::new();
    for (place, request) in requests.iter().enumerate() {
        shards
            .entry(store.deployment.shard(request.key.as_ref()))
            .or_default()
            .push(place);
    }
    let sent = shards.into_iter().map(async |(shard, places)| {
        let requests: Vec<_> = places.iter().map(|place| &requests[*place]).collect();
        let answers = send_shard(store, shard, &requests).await;
        places.into_iter().zip(answers).collect::<Vec<_>>()
    });
    let mut answers: Vec<_> = join_all(sent).await.into_iter().flatten().collect();
    answers.sort_unstable_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

async fn send_shard(store: &RedisStore, shard: Option<u16>, requests: &[&Request]) -> Answers {
    match send(store, shard, requests).await {
        // While a slot is being moved its keys are asked for one at a time. Nothing was carried out yet.
        Err(failed) if requests.len() > 1 && error::redirect(&failed).is_some() => {
            let each = requests.iter().map(async |request| {
                let answers = send(store, shard, &[*request]).await;
                answers.unwrap_or_else(|failed| vec![Err(failed)])
            });
            join_all(each).await.into_iter().flatten().collect()
        }
        sent => sent.unwrap_or_else(|error| failed(requests.len(), &error)),
    }
}

/// Sends the requests in one script. The answers are those of the requests that it knows.
async fn send(store: &RedisStore, shard: Option<u16>, requests: &[&Request]) -> Result<Answers, StoreError> {
    let mut call = Call::of(&store.scripts.apply).acknowledged();
    store.add_place(&mut call, shard);
    let mut packed = Vec::with_capacity(128 * requests.len());
    for request in requests {
        call.key(store.row_key(request.key.as_ref()));
        script::add(&mut packed, request, store.passes_on);
    }
    call.packed(packed);
    let answer = store.deployment.run(&call).await?;
    let outcomes = row::outcomes(&answer.value, requests)?.into_iter();
    let outcomes = outcomes.map(|outcome| match (&answer.open, outcome) {
        (Some(error), Ok(outcome)) if changes(&outcome) => Err(error.clone()),
        (_, outcome) => outcome,
    });
    Ok(outcomes.collect())
}

/// Whether somebody relies on a write.
fn changes(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Busy(_) | Outcome::Lost)
}

fn failed(count: usize, error: &StoreError) -> Answers {
    std::iter::repeat_with(|| Err(error.clone()))
        .take(count)
        .collect()
}
