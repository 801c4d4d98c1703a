//! One request by one autocommit statement: one round trip and one flush to disk for the usual acquire,
//! release and renewal.
//!
//! The statement's condition is what the rules require of the row, and the server checks it under the row
//! lock. `LAST_INSERT_ID(x)` puts a number that the answer needs into the reply, and is multiplied by 0 where no
//! column needs it. Assignments are made from left to right, and each sees the ones before it.
//!
//! None of these statements waits for a row, which takes MariaDB's `SET STATEMENT`. In MySQL the shortest
//! lock wait is a second, in which a user's transaction would delay the leases of others. So with MySQL every
//! request is a batch.
//!
//! Unusual cases are left to [`apply`](super::apply): an expired row, a repeated acquire, a row that names a
//! successor or will name one, a locked row, and whatever the server refuses.

use std::sync::Arc;
use std::time::Duration;

use sqlx::AssertSqlSafe;
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection};
use sqlx::query::Query;

use super::sql::{LIVE_CLOCK, Shared};
use super::{MySqlStore, row};
use crate::store::clock::micros;
use crate::store::rules::{holder, still_busy};
use crate::store::sql_row::COLUMNS;
use crate::store::{Acquire, Action, Extend, Kind, Outcome, Released, Request, StoreError, StoreErrorKind};

/// A locked row is an error at once.
const AT_ONCE: &str = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR";

/// The statements for one table. They are prepared once for each connection.
pub(super) struct Statements {
    take: Arc<str>,
    insert: Arc<str>,
    look: Arc<str>,
    want: Arc<str>,
    extend: Arc<str>,
    hand_over: Arc<str>,
    release: Arc<str>,
}

impl Statements {
    pub(super) fn new(table: &str) -> Self {
        let clock = LIVE_CLOCK;
        let wanted = format!("(wanted_until > 0 AND wanted_until > {clock})");
        // A token without room for the flag bit is out of range, which is an error.
        let take = format!(
            "{AT_ONCE} UPDATE {table} SET lock_owner = ?, holder = ?, acquired_at = {clock}, expire_at = acquired_at + ?, \
             fence_token = GREATEST(fence_ceiling + 1, acquired_at), fence_ceiling = fence_token + ?, revoked = FALSE, \
             reentrant_count = 1 + 0 * LAST_INSERT_ID(fence_token * 2 + (wanted_until > acquired_at)), lease_id = ? \
             WHERE lock_key = ? AND reentrant_count = 0 AND lease_id <> ? AND next_lease IS NULL"
        );
        let insert = format!(
            "{AT_ONCE} INSERT INTO {table} (lock_owner, holder, acquired_at, expire_at, fence_token, fence_ceiling, lease_id, \
             lock_key, reentrant_count, wanted_until, revoked) VALUES (?, ?, {clock}, acquired_at + ?, \
             LAST_INSERT_ID(acquired_at), fence_token + ?, ?, ?, 1, 0, FALSE)"
        );
        let look = format!("SELECT {COLUMNS}, {clock} FROM {table} WHERE lock_key = ?");
        let want = format!(
            "{AT_ONCE} UPDATE {table} SET wanted_until = GREATEST(wanted_until, {clock} + ?) \
             WHERE lock_key = ? AND lease_id = ? AND reentrant_count > 0 AND expire_at > {clock}"
        );
        let extend = |handed_over| {
            format!(
                "{AT_ONCE} UPDATE {table} SET {handed_over}expire_at = IF(revoked, expire_at, GREATEST(IF(? > 0, expire_at, 0), {clock} + ?)), \
                 reentrant_count = GREATEST(?, 1) \
                 + 0 * LAST_INSERT_ID(GREATEST(expire_at - {clock}, 0) * 4 + revoked * 2 + {wanted}) \
                 WHERE lock_key = ? AND lease_id = ? AND reentrant_count > 0 AND expire_at > {clock}"
            )
        };
        let release = format!(
            "{AT_ONCE} UPDATE {table} SET reentrant_count = 0 * LAST_INSERT_ID(reentrant_count > 0) \
             WHERE lock_key = ? AND lease_id = ? AND (reentrant_count = 0 OR expire_at > {clock}) AND next_lease IS NULL"
        );
        Self {
            take: take.into(),
            insert: insert.into(),
            look: look.into(),
            want: want.into(),
            hand_over: extend(
                // The order matters: each assignment reads what those before it wrote.
                "fence_ceiling = IF(? > fence_ceiling, ? + LEAST(fence_ceiling - fence_token, 9223372036854775807 - ?), \
                 fence_ceiling), lock_owner = IF(? >= fence_token, ?, lock_owner), holder = IF(? >= fence_token, ?, holder), \
                 fence_token = GREATEST(?, fence_token), ",
            )
            .into(),
            extend: extend("").into(),
            release: release.into(),
        }
    }
}

/// Tries to carry out `request`. `None`: nothing was done, and [`apply`](super::apply) must carry it out.
pub(super) async fn answer(store: &MySqlStore, request: &Request) -> Option<Result<Outcome, StoreError>> {
    let connection = if Kind::of(&request.action) == Kind::Extend {
        store.connections.take_reserved().await
    } else {
        store.connections.take().await
    };
    let mut connection = match connection {
        Ok(connection) => connection,
        Err(error) => return Some(Err(error)),
    };
    if !connection.writes_alone {
        connection.keep();
        return None;
    }
    let single = Single {
        statements: &store.statements,
        connection: &mut connection,
        request,
    };
    let error = match single.carry_out().await {
        Ok(outcome) => {
            connection.keep();
            return outcome.map(Ok);
        }
        Err(error) => store.failed(error),
    };
    if let StoreErrorKind::Interrupted | StoreErrorKind::Unreachable = error.kind() {
        // The request may have been carried out, which the engine must know; or the next try must reach another
        // server.
        return Some(connection.finish(Err(error)));
    }
    // The refused statement was a transaction of its own, so the connection is clean.
    connection.keep();
    None
}

struct Single<'a> {
    statements: &'a Statements,
    connection: &'a mut MySqlConnection,
    request: &'a Request,
}

impl Single<'_> {
    async fn carry_out(self) -> Result<Option<Outcome>, sqlx::Error> {
        match &self.request.action {
            Action::Acquire(ask) => self.acquire(ask).await,
            Action::Extend(ask) => self.extend(ask).await.map(Some),
            Action::Release => self.release().await,
            // An action of a later version is left to the rules, which refuse it.
            _ => Ok(None),
        }
    }

    async fn acquire(self, ask: &Acquire) -> Result<Option<Outcome>, sqlx::Error> {
        let granted = |fence_token: u64, wanted| {
            let fence_token = i64::try_from(fence_token).unwrap_or(i64::MAX);
            Some(Outcome::granted(fence_token, ask.ttl).with_wanted(wanted))
        };
        let take = self.grant(&self.statements.take, ask).bind(self.request.lease_id);
        let taken = take.execute(&mut *self.connection).await?;
        if taken.rows_affected() > 0 {
            let reply = taken.last_insert_id();
            return Ok(granted(reply / 2, reply % 2 == 1));
        }
        let look = query(&self.statements.look).bind(self.key());
        let Some(row) = look.fetch_optional(&mut *self.connection).await? else {
            let insert = self.grant(&self.statements.insert, ask);
            let inserted = insert.execute(&mut *self.connection).await?;
            return Ok(granted(inserted.last_insert_id(), false));
        };
        let row = row::with_clock(&row, Shared::No)?;
        if let Some(busy) = still_busy(self.request, &row) {
            return Ok(Some(busy));
        }
        // Left to the rules if `wanted_until` must be written, or the request is, or asks to be, the successor.
        let next = row.next.as_ref().map(|next| next.lease_id);
        let ours = [Some(row.lease_id), next].contains(&Some(self.request.lease_id));
        let Some(length) = ask
            .wanted_for
            .filter(|_| row.is_held() && ask.queue.is_none() && !ours)
        else {
            return Ok(None);
        };
        let want = query(&self.statements.want)
            .bind(micros(length))
            .bind(self.key())
            .bind(row.lease_id);
        let noted = want.execute(&mut *self.connection).await?;
        Ok((noted.rows_affected() > 0).then(|| Outcome::Busy(holder(&row))))
    }

    async fn extend(self, ask: &Extend) -> Result<Outcome, sqlx::Error> {
        let extend = match &ask.handed_over {
            None => query(&self.statements.extend),
            Some(to) => query(&self.statements.hand_over)
                .bind(to.fence_token)
                .bind(to.fence_token)
                .bind(to.fence_token)
                .bind(to.fence_token)
                .bind(to.owner)
                .bind(to.fence_token)
                .bind(to.holder.as_ref())
                .bind(to.fence_token),
        };
        let extend = extend
            .bind(ask.count)
            .bind(micros(ask.ttl))
            .bind(ask.count)
            .bind(self.key())
            .bind(self.request.lease_id);
        let extended = extend.execute(self.connection).await?;
        if extended.rows_affected() == 0 {
            return Ok(Outcome::Lost);
        }
        let reply = extended.last_insert_id();
        let remaining = Duration::from_micros(reply / 4);
        Ok(Outcome::extended(remaining)
            .with_count(ask.count.max(1))
            .with_revoked(reply & 2 != 0)
            .with_wanted(reply & 1 != 0))
    }

    /// Only for a row that names no successor. Otherwise the row may name this lease as successor, or may
    /// have to be passed on.
    async fn release(self) -> Result<Option<Outcome>, sqlx::Error> {
        let release = query(&self.statements.release)
            .bind(self.key())
            .bind(self.request.lease_id);
        let released = release.execute(self.connection).await?;
        if released.rows_affected() == 0 {
            return Ok(None);
        }
        let was_held = released.last_insert_id() == 1;
        Ok(Some(Outcome::Released(if was_held {
            Released::Freed
        } else {
            Released::Before
        })))
    }
}

impl<'a> Single<'a> {
    fn key(&self) -> &'a [u8] {
        self.request.key.as_str().as_bytes()
    }

    /// Binds the values of a grant, with which a statement begins.
    fn grant(&self, sql: &Arc<str>, ask: &'a Acquire) -> Query<'a, MySql, MySqlArguments> {
        query(sql)
            .bind(ask.owner)
            .bind(ask.holder.as_ref())
            .bind(micros(ask.ttl))
            .bind(ask.spare_tokens)
            .bind(self.request.lease_id)
            .bind(self.key())
    }
}

fn query<'q>(sql: &Arc<str>) -> Query<'q, MySql, MySqlArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}
