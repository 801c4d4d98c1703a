//! Wake-ups: children of one node, made and deleted in the transaction of the release that they tell of.
//! Nothing is left of them. Whoever watches the node is told their names, which are those of the rows, and
//! reads the rows: what became of a release is known after it.
//!
//! A session of its own watches, opened while somebody waits. A waiter that misses a message polls again
//! within a second.

use std::convert::Infallible;

use dblock::store::{StoreError, StoreErrorKind, WakeUp};
use dblock::{Key, LockRow};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use zookeeper_client::{AddWatchMode, Client, CreateOptions, Error, EventType, MultiWriter};

use crate::place::{self, Place};
use crate::session::Ensemble;
use crate::{error, row, rows};

/// The message that this row is released. `None` if nobody waits.
pub(crate) fn message(row: &LockRow) -> Option<String> {
    (row.next.is_some() || row.wanted_until > row.now).then(|| place::name(&row.key))
}

/// Adds a message to a transaction.
pub(crate) fn tell(
    write: &mut MultiWriter<'_>,
    place: &Place,
    message: &str,
    options: &CreateOptions<'_>,
) -> Result<(), Error> {
    let path = format!("{}/{message}", place.wake_ups());
    write.add_create(&path, &[], options)?;
    write.add_delete(&path, None)
}

/// Reports messages until the connection is lost, and why it was: what is told while it is away is not told
/// again.
pub(crate) async fn listen(
    ensemble: &Ensemble,
    report: &(dyn Fn(WakeUp) + Send + Sync),
) -> Result<Infallible, StoreError> {
    let client = ensemble.connect().await?;
    let path = ensemble.place.wake_ups();
    let watch = client.watch(&path, AddWatchMode::PersistentRecursive).await;
    let mut watch = watch.map_err(error::of_look)?;
    report(WakeUp::Listening);
    let mut looks = FuturesUnordered::new();
    loop {
        let event = tokio::select! {
            Some(told) = looks.next() => {
                report(told?);
                continue;
            }
            event = watch.changed() => event,
        };
        match event.event_type {
            EventType::NodeCreated => {
                let name = event.path.rsplit('/').next().unwrap_or_default();
                // Everyone who may write below the node can send messages. Those of no key are ignored.
                looks.extend(place::key(name).map(|key| look(ensemble, &client, key)));
            }
            EventType::Session => {
                let message = format!("the session that listens for releases is {}", event.session_state);
                return Err(StoreError::new(StoreErrorKind::Interrupted, message));
            }
            _ => {}
        }
    }
}

/// Tells who has the row that was released. The server that has told of the release has carried it out, so
/// what it knows will do. A row that was written again since is reported as free: whoever waits for it asks.
async fn look(ensemble: &Ensemble, client: &Client, key: Key) -> Result<WakeUp, StoreError> {
    let passed_on = match client.get_data(&ensemble.place.row(&key)).await {
        // A row that cannot be read must not end the wake-ups of all keys. Whoever asks for it is told.
        Ok((data, stat)) => row::passed_on(&data, &key, rows::written_at(&stat)).unwrap_or_default(),
        Err(Error::NoNode) => None,
        Err(error) => return Err(error::of_look(error)),
    };
    Ok(match passed_on {
        Some((lease_id, fence_token)) => WakeUp::passed_on(key, lease_id, fence_token),
        None => WakeUp::Released(key),
    })
}

#[cfg(test)]
mod tests {
    use dblock::store::Successor;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_message_is_sent_to_those_who_wait() {
        let key = Key::new(None, "a.é/ b").unwrap();
        let mut row = LockRow::new(key.clone(), 5);
        assert_eq!(message(&row), None, "nobody waits");
        row.wanted_until = 6;
        assert_eq!(message(&row).as_deref().and_then(place::key), Some(key));
        row.wanted_until = 5;
        let id = Uuid::now_v7();
        row.next = Some(Successor::new(id, id, "next", 1, 0, 1, 9));
        assert!(message(&row).is_some());
    }
}
