//! Carries out requests by the rules of [`Store::apply`](dblock::store::Store::apply).

use dblock::Key;
use dblock::store::{Action, Outcome, Request, StoreError, rules};
use futures_util::future::join_all;
use zookeeper_client::Client;

use crate::rows::{self, Found, Put};
use crate::session::Ensemble;
use crate::wake_up;

type Answer = Result<Outcome, StoreError>;

/// One answer for each request. An error stands for the answers of all.
pub(crate) async fn apply(ensemble: &Ensemble, requests: &[Request]) -> Result<Vec<Answer>, StoreError> {
    let client = ensemble.client().await?;
    let answered = async {
        let mut answers = release_held(ensemble, &client, requests).await?;
        let open: Vec<&Request> = requests
            .iter()
            .zip(&answers)
            .filter_map(|(request, answer)| answer.is_none().then_some(request))
            .collect();
        // A failure is the answer of these: releases may have been carried out already, and must not seem to be open.
        let mut others = carry_out_all(ensemble, &client, &open)
            .await
            .unwrap_or_else(|error| open.iter().map(|_| Err(error.clone())).collect())
            .into_iter();
        for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
            *answer = others.next();
        }
        Ok(answers.into_iter().flatten().collect::<Vec<_>>())
    };
    let answers = answered
        .await
        .inspect_err(|error| ensemble.check(&client, error))?;
    for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        ensemble.check(&client, error);
    }
    Ok(answers)
}

/// The answers to the releases of leases that hold their rows, and `None` for all other requests.
async fn release_held(
    ensemble: &Ensemble,
    client: &Client,
    requests: &[Request],
) -> Result<Vec<Option<Answer>>, StoreError> {
    let mut answers: Vec<Option<Answer>> = requests.iter().map(|_| None).collect();
    let releases = requests.iter().enumerate();
    let releases: Vec<_> = releases
        .filter(|(_, request)| matches!(request.action, Action::Release))
        .collect();
    if releases.is_empty() {
        return Ok(answers);
    }
    let keys: Vec<&Key> = releases.iter().map(|(_, request)| &request.key).collect();
    let found = rows::glance(ensemble, client, &keys).await?;
    let ended = releases
        .into_iter()
        .zip(found)
        .filter_map(|((place, request), found)| {
            let found = found
                .ok()
                .filter(|found| found.may_be_released(request.lease_id))?;
            Some(async move { (place, rows::release(ensemble, client, found).await) })
        });
    for (place, answer) in join_all(ended).await {
        answers[place] = Some(answer);
    }
    Ok(answers)
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
    let message = wake_up::message(&found.row);
    let (outcome, changed) = rules::carry_out(request, &mut found.row)?;
    if !changed {
        return Ok(match outcome {
            // The row may be passed on at this moment, by a release that has read the clock before this ask was sent. What
            // is written, as a successor's place, excludes that.
            Outcome::Queued { holder, .. } => Outcome::Busy(holder),
            outcome => outcome,
        });
    }
    let message = message.filter(|_| matches!(outcome, Outcome::Released { .. }));
    Ok(match rows::put(ensemble, client, &found, message).await? {
        Put::Written => outcome,
        Put::Outrun => Outcome::Skipped,
    })
}
