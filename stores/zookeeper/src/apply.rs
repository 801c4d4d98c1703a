//! Carries out requests by the rules of [`Store::apply`](dblock_core::store::Store::apply).

use dblock_core::Key;
use dblock_core::store::rules::{self, CarriedOut};
use dblock_core::store::{Action, Outcome, Request, StoreError};
use futures_util::future::join_all;
use zookeeper_client::Client;

use crate::error;
use crate::rows::{self, Found, Put};
use crate::session::Ensemble;

type Answer = Result<Outcome, StoreError>;

/// One answer for each request.
///
/// # Errors
/// There is no session, so nothing was sent.
pub(crate) async fn apply(ensemble: &Ensemble, requests: &[Request]) -> Result<Vec<Answer>, StoreError> {
    let client = ensemble.client().await?;
    // All releases are on their way together.
    let released = requests
        .iter()
        .map(|request| release_held(ensemble, &client, request));
    let mut answers = join_all(released).await;
    let open: Vec<&Request> = requests
        .iter()
        .zip(&answers)
        .filter_map(|(request, answer)| answer.is_none().then_some(request))
        .collect();
    let mut failures = answers
        .iter()
        .flatten()
        .filter_map(|answer| answer.as_ref().err());
    let others = match failures.find(|error| error::is_of_session(error)) {
        // The session would connect again first, and until then everything sent into it would hang.
        Some(lost) => Err(error::of_unsent(lost)),
        None => carry_out_all(ensemble, &client, &open).await,
    };
    // A failure is the answer of these: releases may have been carried out already, and must not seem to be
    // open.
    let mut others = others
        .unwrap_or_else(|error| open.iter().map(|_| Err(error.clone())).collect())
        .into_iter();
    for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
        *answer = others.next();
    }
    let answers: Vec<Answer> = answers.into_iter().flatten().collect();
    for (request, answer) in requests.iter().zip(&answers) {
        ensemble.asks.note(request, answer);
    }
    let named = |answer: Answer| answer.map_err(|error| ensemble.failed(&client, error));
    Ok(answers.into_iter().map(named).collect())
}

/// The answer to the release of a lease that holds its row, and `None` for every other request.
async fn release_held(ensemble: &Ensemble, client: &Client, request: &Request) -> Option<Answer> {
    if !matches!(request.action, Action::Release) {
        return None;
    }
    if let Some(found) = ensemble.held.take(&request.key, request.lease_id) {
        let released = rows::release(ensemble, client, found).await;
        if !matches!(released, Ok(Outcome::Skipped)) {
            return Some(released);
        }
        // The row that was kept is out of date. Nothing was written.
    }
    match rows::glance(&ensemble.place, client, &request.key).await {
        Ok(found) if found.may_be_released(request.lease_id) => {
            Some(rows::release(ensemble, client, found).await)
        }
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    }
}

async fn carry_out_all(
    ensemble: &Ensemble,
    client: &Client,
    requests: &[&Request],
) -> Result<Vec<Answer>, StoreError> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<&Key> = requests.iter().map(|request| &request.key).collect();
    let found = rows::read(ensemble, client, &keys).await?;
    let carried_out = requests
        .iter()
        .zip(found)
        .map(|(request, found)| async move { carry_out(ensemble, client, request, found?).await });
    // Each sends its write when it is first asked, so all are on their way together.
    Ok(join_all(carried_out).await)
}

async fn carry_out(
    ensemble: &Ensemble,
    client: &Client,
    request: &Request,
    mut found: Found,
) -> Result<Outcome, StoreError> {
    let CarriedOut { outcome, changed, .. } = rules::carry_out(request, &mut found.row)?;
    if !changed {
        return Ok(match outcome {
            // The row may be passed on at this moment, by a release that has read the clock before this ask
            // was sent. A write, such as that of a successor's place, excludes this.
            Outcome::Queued { holder, .. } => Outcome::Busy(holder),
            outcome => outcome,
        });
    }
    if rows::put(ensemble, client, &found).await? == Put::Outrun {
        return Ok(Outcome::Skipped);
    }
    if matches!(outcome, Outcome::Granted { .. } | Outcome::Extended { .. }) {
        ensemble.held.keep(&ensemble.place, client, found.written());
    }
    Ok(outcome)
}
