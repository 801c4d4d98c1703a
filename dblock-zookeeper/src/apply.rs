//! Carries out requests by the rules of [`Store::apply`](dblock::store::Store::apply).

use dblock::Key;
use dblock::store::{Outcome, Request, StoreError, rules};
use futures_util::future::join_all;
use zookeeper_client::Client;

use crate::rows::{self, Found, Put};
use crate::session::Ensemble;
use crate::wake_up;

/// One answer for each request. An error stands for the answers of all.
pub(crate) async fn apply(
    ensemble: &Ensemble,
    requests: &[Request],
) -> Result<Vec<Result<Outcome, StoreError>>, StoreError> {
    let client = ensemble.client().await?;
    let keys: Vec<&Key> = requests.iter().map(|request| &request.key).collect();
    let found = rows::read(ensemble, &client, &keys).await;
    let found = found.inspect_err(|error| ensemble.check(&client, error))?;
    let carried_out = requests.iter().zip(found).map(|(request, found)| {
        let client = &client;
        async move {
            let outcome = match found {
                Ok(found) => carry_out(ensemble, client, request, found).await,
                Err(error) => Err(error),
            };
            outcome.inspect_err(|error| ensemble.check(client, error))
        }
    });
    // Each sends its write when it is first asked, so all are on their way together.
    Ok(join_all(carried_out).await)
}

async fn carry_out(
    ensemble: &Ensemble,
    client: &Client,
    request: &Request,
    mut found: Found,
) -> Result<Outcome, StoreError> {
    let (outcome, changed) = rules::carry_out(request, &mut found.row)?;
    if !changed {
        return Ok(match outcome {
            // The row may be passed on at this moment, by a release that has read the clock before this ask was sent. What
            // is written, as a successor's place, excludes that.
            Outcome::Queued { holder, .. } => Outcome::Busy(holder),
            outcome => outcome,
        });
    }
    let message = match outcome {
        Outcome::Released { passed_on: true, .. } => Some(wake_up::passed_on(&found.row)),
        Outcome::Released { .. } => wake_up::released(&found.row),
        _ => None,
    };
    Ok(match rows::put(ensemble, client, &found, message).await? {
        Put::Written => outcome,
        Put::Outrun => Outcome::Skipped,
    })
}
