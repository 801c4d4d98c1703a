//! Wake-ups: children of one node, made and deleted in the transaction of the release that they tell of. Nothing is left of
//! them, and whoever watches the node is told their names, which say it all.
//!
//! A session of its own watches, opened while somebody waits. A waiter that misses a message polls again within a second.

use std::convert::Infallible;

use dblock::LockRow;
use dblock::store::{StoreError, StoreErrorKind, WakeUp};
use uuid::Uuid;
use zookeeper_client::{AddWatchMode, CreateOptions, Error, EventType, MultiWriter};

use crate::error;
use crate::place::{self, Place};
use crate::session::Ensemble;

/// The message about a row that was freed: `r.` and the key. `None` if nobody waits.
pub(crate) fn released(row: &LockRow) -> Option<String> {
    (row.wanted_until > row.now).then(|| format!("r.{}", place::name(&row.key)))
}

/// The message about a row that was passed on: `p.`, the lease that has it now, its token, and the key.
pub(crate) fn passed_on(row: &LockRow) -> String {
    let lease = row.lease_id.simple();
    format!("p.{lease}.{}.{}", row.fence_token, place::name(&row.key))
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

/// Reports messages until the connection is lost, and why it was: what is told while it is away is not told again.
pub(crate) async fn listen(
    ensemble: &Ensemble,
    report: &(dyn Fn(WakeUp) + Send + Sync),
) -> Result<Infallible, StoreError> {
    let client = ensemble.connect().await?;
    let path = ensemble.place.wake_ups();
    let watch = client.watch(&path, AddWatchMode::PersistentRecursive).await;
    let mut watch = watch.map_err(error::of_look)?;
    report(WakeUp::Listening);
    loop {
        let event = watch.changed().await;
        match event.event_type {
            EventType::NodeCreated => {
                let name = event.path.rsplit('/').next().unwrap_or_default();
                read(name).into_iter().for_each(report);
            }
            EventType::Session => {
                let message = format!("the session that listens for releases is {}", event.session_state);
                return Err(StoreError::new(StoreErrorKind::Interrupted, message));
            }
            _ => {}
        }
    }
}

/// Everyone who may write below the node can send messages. One that cannot be read is ignored, and a forged release only
/// makes waiters ask. A forged pass-on would let the successor enter beside the holder, but it must name the successor's
/// lease, which only users who may read the rows can know.
fn read(message: &str) -> Option<WakeUp> {
    match message.split_once('.')? {
        ("r", key) => place::key(key).map(WakeUp::Released),
        ("p", rest) => {
            let mut parts = rest.splitn(3, '.');
            let lease = Uuid::try_parse(parts.next()?).ok()?;
            let token = parts.next()?.parse().ok()?;
            Some(WakeUp::passed_on(place::key(parts.next()?)?, lease, token))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use dblock::Key;

    use super::*;

    #[test]
    fn a_message_is_read_or_ignored() {
        let key = Key::new(None, "a.é/ b").unwrap();
        let mut row = LockRow::new(key.clone(), 5);
        assert_eq!(released(&row), None, "nobody waits");
        row.wanted_until = 6;
        assert_eq!(
            read(&released(&row).unwrap()),
            Some(WakeUp::Released(key.clone()))
        );
        row.lease_id = Uuid::now_v7();
        row.fence_token = i64::MAX;
        let told = read(&passed_on(&row));
        assert_eq!(told, Some(WakeUp::passed_on(key, row.lease_id, i64::MAX)));
        for other in ["", "r", "r.", "x.k", "p.k", "p.1.2.k", "r.a/b"] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }
}
