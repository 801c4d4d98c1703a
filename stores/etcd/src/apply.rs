//! Carries out requests: those of each kind together, and the kinds side by side.

mod acquire;
mod hold;

use dblock_core::store::{Action, Request, StoreError, StoreErrorKind};
use futures_util::future::join4;

use crate::{Answer, EtcdStore};

/// [`Store::apply`](dblock_core::store::Store::apply).
pub(crate) async fn apply(store: &EtcdStore, requests: &[Request]) -> Vec<Answer> {
    if requests.is_empty() {
        return Vec::new();
    }
    let lent = match store.members.take().await {
        Ok(lent) => lent,
        Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
    };
    let acquires = Part::of(requests, |request| match &request.action {
        Action::Acquire(ask) => Some((request, ask)),
        _ => None,
    });
    let extends = Part::of(requests, |request| match &request.action {
        Action::Extend(ask) => Some((request, ask)),
        _ => None,
    });
    let releases = Part::of(requests, |request| {
        matches!(request.action, Action::Release).then_some(request)
    });
    let passes = Part::of(requests, |request| match &request.action {
        Action::Transfer(ask) => Some((request, ask)),
        _ => None,
    });
    let (first, second, third, fourth) = join4(
        Box::pin(acquire::acquire(
            &lent.client,
            &store.names,
            &store.places,
            &store.leases,
            &acquires.asks,
        )),
        Box::pin(hold::extend(
            &lent.client,
            &store.names,
            &store.leases,
            &extends.asks,
        )),
        Box::pin(hold::release(
            &lent.client,
            &store.names,
            &store.places,
            &store.leases,
            &releases.asks,
        )),
        Box::pin(hold::transfer(
            &lent.client,
            &store.names,
            &store.leases,
            &passes.asks,
        )),
    )
    .await;
    let mut answers: Vec<Answer> = requests.iter().map(|_| Err(unknown_action())).collect();
    let places = [acquires.places, extends.places, releases.places, passes.places];
    for (places, part) in places.into_iter().zip([first, second, third, fourth]) {
        for (place, answer) in places.into_iter().zip(part) {
            answers[place] = answer;
        }
    }
    lent.finish_all(answers)
}

/// Requests of one kind, and their places in the batch.
struct Part<T> {
    places: Vec<usize>,
    asks: Vec<T>,
}

impl<T> Part<T> {
    fn of<'r>(requests: &'r [Request], pick: impl Fn(&'r Request) -> Option<T>) -> Self {
        let picked = requests.iter().enumerate();
        let (places, asks) = picked
            .filter_map(|(place, request)| Some((place, pick(request)?)))
            .unzip();
        Self { places, asks }
    }
}

fn unknown_action() -> StoreError {
    let message = "this version of dblock-etcd does not know the request: use the versions of dblock and dblock-etcd \
                   that belong together";
    StoreError::new(StoreErrorKind::Unsupported, message)
}
