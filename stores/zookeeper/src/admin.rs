//! Changes of rows by operators.

use dblock_core::store::{StoreError, StoreErrorKind};
use dblock_core::{Key, LockRow};

use crate::rows::{self, Put};
use crate::session::Ensemble;

/// Reads the row of `key`, and changes it if it is held. Returns whether it was.
pub(crate) async fn operate(
    ensemble: &Ensemble,
    key: &Key,
    change: impl Fn(&mut LockRow),
) -> Result<bool, StoreError> {
    /// The holder of a key writes its row a few times a second, and waiters do.
    const TRIES: usize = 20;
    let client = ensemble.client().await?;
    let operated = async {
        for _ in 0..TRIES {
            let found = rows::read(ensemble, &client, &[key])
                .await?
                .into_iter()
                .next()
                .transpose()?;
            let Some(mut found) = found.filter(|found| found.row.is_held()) else {
                return Ok(false);
            };
            change(&mut found.row);
            if rows::put(ensemble, &client, &found).await? == Put::Written {
                return Ok(true);
            }
        }
        let message = format!(
            "the row of {key:?} was changed by others {TRIES} times while it was about to be changed"
        );
        Err(StoreError::new(StoreErrorKind::Conflict, message))
    };
    operated.await.inspect_err(|error| ensemble.check(&client, error))
}
