//! Which answers of a server count.
//!
//! If somebody cancels a commit's wait for a synchronous standby, the commit is answered without the standby.
//! The server alone then has the change, which is lost when the server is replaced: a lease would end early, or
//! finished work be done again. Such an answer counts once another commit has reached the standby, because a
//! standby gets all commits in their order.

use super::PostgresStore;
use super::session::Session;
use super::statement::Statement;
use crate::store::connections::Borrowed;
use crate::store::{StoreError, StoreErrorKind};

/// Commits, if commits wait for a standby. Returns one row.
const COMMIT: &str = "SELECT CASE WHEN pg_catalog.current_setting('synchronous_standby_names') <> ''
    THEN pg_catalog.pg_logical_emit_message(true, 'dblock', '') IS NULL END";

/// Fails if an answer on this connection may be lost.
pub(super) async fn certain(connection: &mut Borrowed<'_, Session>) -> Result<(), StoreError> {
    if connection.take_warning() {
        let committed = Statement::new(&COMMIT.into()).fetch_all(connection).await;
        committed.map_err(|error| unknown("it is not known whether a standby has it").with_source(error))?;
        if connection.take_warning() {
            return Err(unknown(
                "no standby has it: somebody cancels the commits that wait",
            ));
        }
    }
    if connection.is_outdated() {
        return Err(unknown("another server has been promoted meanwhile"));
    }
    Ok(())
}

fn unknown(why: &str) -> StoreError {
    let message = format!("the server has answered, but {why}");
    StoreError::new(StoreErrorKind::Interrupted, message)
}

impl PostgresStore {
    /// Ends the use of a connection on which one statement was answered.
    pub(super) async fn finish<T>(
        &self,
        mut connection: Borrowed<'_, Session>,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let certain = certain(&mut connection).await;
        connection.finish(certain.and(answer))
    }
}
