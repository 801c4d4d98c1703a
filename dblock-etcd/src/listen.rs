//! Wake-ups: keys of rows that were deleted, by a release or because their lease has ended.

use dblock::store::{StoreError, StoreErrorKind, WakeUp};
use etcd_client::{Client, WatchFilterType, WatchOptions};

use crate::error;
use crate::keys::Keys;
use crate::operate::key;

/// Reports deleted rows until the watch ends. The engine then begins a new one.
pub(crate) async fn listen(
    client: &mut Client,
    names: &Keys,
    tell: &(dyn Fn(WakeUp) + Send + Sync),
) -> StoreError {
    let watched = watch(client, names, tell).await;
    watched.err().unwrap_or_else(|| ended("the stream has ended"))
}

async fn watch(
    client: &mut Client,
    names: &Keys,
    tell: &(dyn Fn(WakeUp) + Send + Sync),
) -> Result<(), StoreError> {
    let folder = names.rows();
    let options = WatchOptions::new()
        .with_prefix()
        .with_filters([WatchFilterType::NoPut]);
    let mut stream = client
        .watch(&*folder, Some(options))
        .await
        .map_err(error::of_harmless)?;
    while let Some(answer) = stream.message().await.map_err(error::of_harmless)? {
        if answer.canceled() {
            return Err(ended(answer.cancel_reason()));
        }
        if answer.created() {
            tell(WakeUp::Listening);
        }
        for deleted in answer.events().iter().filter_map(|event| event.kv()) {
            // A row that is not ours wakes nobody.
            if let Ok(key) = key(&deleted.key()[folder.len()..]) {
                tell(WakeUp::Released(key));
            }
        }
    }
    Ok(())
}

fn ended(reason: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        format!("etcd has ended the watch: {reason}"),
    )
}
