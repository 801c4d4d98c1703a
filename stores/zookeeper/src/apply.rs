//! Carries out requests by the rules of [`Store::apply`](dblock_core::store::Store::apply).

use dblock_core::Key;
use dblock_core::store::rules::{self, CarriedOut};
use dblock_core::store::{Action, Outcome, Request, StoreError};
use futures_util::future::join_all;
use futures_util::join;
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
    let asked = Asked {
        ensemble,
        client: Some(&client),
    };
    // All that needs no read is on its way together.
    let known = requests
        .iter()
        .map(|request| by_known_row(ensemble, &client, request));
    let mut answers = join_all(known).await;
    let open: Vec<&Request> = requests
        .iter()
        .zip(&answers)
        .filter_map(|(request, answer)| answer.is_none().then_some(request))
        .collect();
    if !open.is_empty() {
        let mut failures = answers
            .iter()
            .flatten()
            .filter_map(|answer| answer.as_ref().err());
        let others = match failures.find(|error| error::is_of_session(error)) {
            // The session would connect again first, and until then everything sent into it would hang.
            Some(lost) => Err(error::of_unsent(lost)),
            None => by_read_row(ensemble, &client, &open).await,
        };
        fill(&mut answers, others);
    }
    asked.answered();
    let answers: Vec<Answer> = answers.into_iter().flatten().collect();
    for (request, answer) in requests.iter().zip(&answers) {
        ensemble.asks.note(request, answer);
    }
    let named = |answer: Answer| answer.map_err(|error| ensemble.failed(&client, error));
    Ok(answers.into_iter().map(named).collect())
}

/// A call that is under way. If it is dropped, the session has left it without an answer.
struct Asked<'a> {
    ensemble: &'a Ensemble,
    client: Option<&'a Client>,
}

impl Asked<'_> {
    fn answered(mut self) {
        self.client = None;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            self.ensemble.suspect(client);
        }
    }
}

/// Answers the requests that are still open. An error is the answer of these: the others may have been carried out
/// already, and must not seem to be open.
fn fill(answers: &mut [Option<Answer>], others: Result<Vec<Answer>, StoreError>) {
    let open = answers.iter_mut().filter(|answer| answer.is_none());
    match others {
        Ok(others) => open.zip(others).for_each(|(answer, other)| *answer = Some(other)),
        Err(error) => open.for_each(|answer| *answer = Some(Err(error.clone()))),
    }
}

/// The answer to a request of a lease whose row is known here. `None`: it is not, or not any more. Then nothing was
/// written.
async fn by_known_row(ensemble: &Ensemble, client: &Client, request: &Request) -> Option<Answer> {
    let found = match request.action {
        Action::Extend(_) => ensemble.held.known(&request.key, request.lease_id),
        Action::Release => ensemble.held.take(&request.key, request.lease_id),
        _ => None,
    };
    let found = found.filter(|found| found.fits(request))?;
    at_once(ensemble, client, request, found).await.transpose()
}

/// The answers to requests whose rows are read now. Those that the rows fit are carried out at once, and on the way with
/// them is what the others need: so a key that is free waits little for those that are not.
async fn by_read_row(
    ensemble: &Ensemble,
    client: &Client,
    requests: &[&Request],
) -> Result<Vec<Answer>, StoreError> {
    let keys: Vec<&Key> = requests.iter().map(|request| &request.key).collect();
    let found = rows::glance(&ensemble.place, client, &keys).await?;
    let others: Vec<&Request> = requests
        .iter()
        .zip(&found)
        .filter(|(request, found)| found.as_ref().is_ok_and(|found| !found.fits(request)))
        .map(|(request, _)| *request)
        .collect();
    let answers = requests.iter().zip(found).map(|(request, found)| async move {
        match found {
            Ok(found) if found.fits(request) => {
                let answer = at_once(ensemble, client, request, found).await;
                Some(answer.map(|answer| answer.unwrap_or(Outcome::Skipped)))
            }
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    });
    let (mut answers, others) = join!(join_all(answers), by_clock(ensemble, client, &others));
    fill(&mut answers, others);
    Ok(answers.into_iter().flatten().collect())
}

/// Carries a request out by one write. `None`: somebody was faster.
async fn at_once(
    ensemble: &Ensemble,
    client: &Client,
    request: &Request,
    found: Found,
) -> Result<Option<Outcome>, StoreError> {
    let Some((outcome, found)) = rows::put_with(ensemble, client, request, found).await? else {
        return Ok(None);
    };
    keep(ensemble, client, &outcome, found);
    Ok(Some(outcome))
}

fn keep(ensemble: &Ensemble, client: &Client, outcome: &Outcome, found: Found) {
    // Others write the row of a lock that is shared.
    let is_alone = found.row.shared.is_empty();
    if is_alone && matches!(outcome, Outcome::Granted { .. } | Outcome::Extended { .. }) {
        ensemble.held.keep(&ensemble.place, client, found);
    }
}

/// The answers to requests that depend on the time before their write.
async fn by_clock(
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
    // Many processes write the row of a lock that is shared.
    let mut tries = if found.row.shared.is_empty() { 1 } else { 3 };
    loop {
        let CarriedOut { outcome, changed, .. } = rules::carry_out(request, &mut found.row)?;
        if !changed {
            return Ok(match outcome {
                // The row may be passed on at this moment, by a release that has read the clock before this ask
                // was sent. A write, such as that of a successor's place, excludes this.
                Outcome::Queued { holder, .. } => Outcome::Busy(holder),
                outcome => outcome,
            });
        }
        if rows::put(ensemble, client, &found).await? == Put::Written {
            keep(ensemble, client, &outcome, found.written());
            return Ok(outcome);
        }
        tries -= 1;
        let mut again = match tries {
            0 => Vec::new(),
            _ => rows::read(ensemble, client, &[&request.key]).await?,
        };
        match again.pop() {
            Some(again) => found = again?,
            None => return Ok(Outcome::Skipped),
        }
    }
}
