//! The node of Galera in use, if the URL names several.
//!
//! Each node takes writes, so the processes must agree on one. Row 2 of the version table names it. All nodes
//! agree on a row: of two writes Galera refuses one. A process uses the node that the row names, or none.
//! Another node is named only when the named one has left the component. From then on the former one can commit
//! nothing, until it has come back and has read the new name.

use std::time::Duration;

use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::Instant;

use super::error;
use crate::store::servers::History;
use crate::store::{StoreError, StoreErrorKind};

/// How long a connection goes on without reading the name again.
const TRUSTED: Duration = Duration::from_secs(1);

/// What a node tells of itself and of its component.
const VIEW: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN \
    ('wsrep_gcomm_uuid', 'wsrep_cluster_conf_id', 'wsrep_cluster_size')";

/// A node's name: the first half of its UUID, which it keeps over a crash. Two numbers, because the table has
/// two columns of numbers.
type Name = (i32, i32);

struct View {
    uuid: String,
    number: i64,
    size: usize,
}

impl View {
    async fn of(connection: &mut MySqlConnection) -> Result<Self, sqlx::Error> {
        let mut view = Self {
            uuid: String::new(),
            number: 0,
            size: 0,
        };
        for row in sqlx::raw_sql(VIEW).fetch_all(connection).await? {
            let value: String = row.try_get(1)?;
            match row.try_get(0)? {
                "wsrep_gcomm_uuid" => view.uuid = value,
                "wsrep_cluster_conf_id" => view.number = value.parse().unwrap_or(-1),
                _ => view.size = value.parse().unwrap_or(usize::MAX),
            }
        }
        Ok(view)
    }

    fn name(&self) -> Result<Name, sqlx::Error> {
        let digits: String = self.uuid.chars().filter(|digit| *digit != '-').collect();
        let number = |digits: Option<&str>| {
            let number = u32::from_str_radix(digits.unwrap_or_default(), 16);
            let number = number.map_err(|error| sqlx::Error::Decode(error.into()))?;
            Ok::<_, sqlx::Error>(i32::from_ne_bytes(number.to_ne_bytes()))
        };
        Ok((number(digits.get(..8))?, number(digits.get(8..16))?))
    }
}

/// The beginning of a UUID.
fn shown(name: Name) -> String {
    let (first, second) = name;
    let second = format!("{second:08x}");
    format!("{first:08x}-{}-{}", &second[..4], &second[4..])
}

/// The row that names the node in use, as far as a connection knows it.
#[derive(Debug)]
pub(super) struct InUse {
    /// The quoted version table.
    table: String,
    /// When this node was the named one.
    confirmed: Option<Instant>,
}

impl InUse {
    pub(super) fn in_table(table: String) -> Self {
        Self {
            table,
            confirmed: None,
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.confirmed.is_none_or(|at| at.elapsed() > TRUSTED)
    }

    /// Whether this node is in use, or nothing can be used yet.
    pub(super) async fn is_here(&mut self, connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
        Ok(!self.history(connection).await?.stands_by)
    }

    pub(super) async fn history(&mut self, connection: &mut MySqlConnection) -> Result<History, sqlx::Error> {
        let asked = Instant::now();
        let view = View::of(connection).await?;
        let own = view.name()?;
        let here = match self.named(connection).await {
            // There are no tables yet, so there are no locks. The row is read again soon.
            Err(error) if error::number(&error) == Some(error::NO_SUCH_TABLE) => {
                return Ok(History::default());
            }
            named => named? == Some(own),
        };
        self.confirmed = here.then_some(asked);
        Ok(History {
            stands_by: !here,
            view: view.number,
            member: i64::from(own.0) << 32 | i64::from(own.1.cast_unsigned()),
            ..History::default()
        })
    }

    async fn named(&self, connection: &mut MySqlConnection) -> Result<Option<Name>, sqlx::Error> {
        let sql = format!("SELECT version, min_client FROM {} WHERE id = 2", self.table);
        let row = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_optional(connection)
            .await?;
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    }

    /// Names this node if the named one has left. `members` nodes of its `view` have answered. `false` if
    /// another process was faster.
    pub(super) async fn claim(
        &mut self,
        connection: &mut MySqlConnection,
        view: i64,
        members: usize,
    ) -> Result<bool, StoreError> {
        let named = self.named(connection).await.map_err(error::of_connect)?;
        let now = View::of(connection).await.map_err(error::of_connect)?;
        let own = now.name().map_err(error::of_connect)?;
        let sql = match named {
            None => format!("INSERT INTO {} VALUES (2, {}, {})", self.table, own.0, own.1),
            Some(named) if named == own => return Ok(false),
            Some(named) => {
                // Only some users may read who the members are.
                let has_left = match is_member(connection, named).await {
                    Ok(is_member) => !is_member,
                    Err(_) => now.number == view && now.size == members,
                };
                if !has_left {
                    return Err(not_here(named));
                }
                format!(
                    "UPDATE {} SET version = {}, min_client = {} WHERE id = 2 AND version = {} AND min_client = {}",
                    self.table, own.0, own.1, named.0, named.1
                )
            }
        };
        match sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
            Ok(done) => {
                self.confirmed = Some(Instant::now());
                Ok(done.rows_affected() == 1)
            }
            Err(error) => match error::number(&error) {
                Some(error::DUPLICATE_KEY | error::DEADLOCK | error::INTERRUPTED) => Ok(false),
                _ => Err(error::of_connect(error)),
            },
        }
    }
}

async fn is_member(connection: &mut MySqlConnection, name: Name) -> Result<bool, sqlx::Error> {
    let sql = format!(
        "SELECT COUNT(*) FROM mysql.wsrep_cluster_members WHERE node_uuid LIKE '{}-%'",
        shown(name)
    );
    let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?;
    Ok(row.try_get::<i64, _>(0)? > 0)
}

fn not_here(named: Name) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        format!(
            "all processes use another node of this Galera cluster, {}-…, which does not answer here and is not known to \
             have left the cluster; make it reachable, name all nodes in the URL, or let the user SELECT from \
             mysql.wsrep_cluster_members",
            shown(named)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_beginning_of_the_uuid() {
        for (uuid, beginning) in [
            ("a52371b2-e796-11f1-8816-a2ee4b9f1f89", "a52371b2-e796-11f1"),
            ("00000001-0002-0003-8816-a2ee4b9f1f89", "00000001-0002-0003"),
        ] {
            let view = View {
                uuid: uuid.to_owned(),
                number: 0,
                size: 0,
            };
            assert_eq!(shown(view.name().unwrap()), beginning);
        }
    }
}
