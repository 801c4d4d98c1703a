//! Wake-ups: keys of rows that were deleted, by a release or because their lease has ended. By that the lock
//! has gone to whoever was next. A process knows its own places; for others a release is reported, and they
//! ask.

use std::convert::Infallible;

use dblock_core::store::{StoreError, StoreErrorKind, WakeUp};
use etcd_client::{Client, ResponseHeader, WatchFilterType, WatchOptions};

use crate::admin::key;
use crate::error;
use crate::keys::Keys;
use crate::places::Places;

/// Reports deleted rows until the watch ends. The engine then begins a new one.
pub(crate) async fn listen(
    client: &mut Client,
    names: &Keys,
    places: &Places,
    tell: &(dyn Fn(WakeUp) + Send + Sync),
) -> Result<Infallible, StoreError> {
    let options = WatchOptions::new()
        .with_prefix()
        .with_filters([WatchFilterType::NoPut]);
    let mut stream = client
        .watch(names.all_rows(), Some(options))
        .await
        .map_err(error::of_harmless)?;
    while let Some(answer) = stream.message().await.map_err(error::of_harmless)? {
        if answer.canceled() {
            return Err(ended(answer.cancel_reason()));
        }
        if answer.created() {
            let since = answer.header().map_or(i64::MAX, ResponseHeader::revision);
            places.watched_since(since);
            tell(WakeUp::Listening);
        }
        for deleted in answer.events().iter().filter_map(|event| event.kv()) {
            // A row that is not ours wakes nobody.
            let Some((slot, name)) = names.read(deleted.key()) else {
                continue;
            };
            let Ok(key) = key(name) else { continue };
            tell(match places.passed_on(&key, slot, deleted.mod_revision()) {
                Some(place) => WakeUp::passed_on(key, place.lease_id, place.fence_token),
                None => WakeUp::Released(key),
            });
        }
    }
    Err(ended("the stream has ended"))
}

fn ended(reason: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        format!("etcd has ended the watch: {reason}"),
    )
}
