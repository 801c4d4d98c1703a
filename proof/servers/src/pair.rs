//! A PostgreSQL primary and its synchronous standby, for somebody who makes them fail over.
//!
//! A commit waits until the standby has it on its disk. A server that was promoted waits for nobody until it
//! has a standby of its own, as a manager of clusters would have it: else its commits would not end.

use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::postgres::{Place, Programs};
use crate::{Purpose, Server, random_password, temporary_folder};

/// How long a standby may take until it follows, or takes writes.
const LIMIT: Duration = Duration::from_mins(1);

/// How often it is asked whether it does. In one transaction the answer would always be the same.
const ASK_EVERY: Duration = Duration::from_millis(50);

const WAIT_FOR_STANDBY: [&str; 2] = [
    "ALTER SYSTEM SET synchronous_standby_names = '*'",
    "SELECT pg_reload_conf()",
];

const TAKES_WRITES: [&str; 1] =
    ["DO $$ BEGIN ASSERT NOT pg_is_in_recovery(), 'the server was not promoted'; END $$"];

const IS_IN_STEP: [&str; 1] = ["DO $$ BEGIN
    ASSERT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync'), 'the standby does not follow';
    END $$"];

/// Two PostgreSQL servers, of which one follows the other.
#[derive(Debug)]
pub struct Pair {
    programs: Programs,
    password: String,
    servers: [(Place, Server); 2],
    /// The place of the primary in `servers`.
    primary: usize,
}

impl Pair {
    /// Starts both.
    ///
    /// # Errors
    /// PostgreSQL is not installed, or a server does not start.
    pub async fn start(purpose: Purpose) -> anyhow::Result<Self> {
        let programs = Programs::find().context("the programs of PostgreSQL are not installed")?;
        let password = random_password()?;
        let place = || -> anyhow::Result<(TempDir, Place)> {
            let top = temporary_folder()?;
            let place = Place::new(&top)?;
            Ok((top, place))
        };
        let (top, first) = place()?;
        programs.initialize(&first, &password, purpose).await?;
        let primary = programs.serve(&first, top, &password, purpose).await?;
        let (top, second) = place()?;
        programs.copy(&second, &password, primary.port()).await?;
        let standby = programs.serve(&second, top, &password, purpose).await?;
        let pair = Self {
            programs,
            password,
            servers: [(first, primary), (second, standby)],
            primary: 0,
        };
        pair.wait_for_standby().await?;
        Ok(pair)
    }

    /// The URL of a superuser, with both servers. Their order never changes.
    pub fn url(&self) -> String {
        let [(_, first), (_, second)] = &self.servers;
        let second = format!(",127.0.0.1:{}/", second.port());
        let (before, after) = first.url().rsplit_once('/').unwrap_or_default();
        format!("{before}{second}{after}")
    }

    /// The primary, or where it has been killed, what was the primary.
    pub fn primary(&mut self) -> &mut Server {
        &mut self.servers[self.primary].1
    }

    /// The standby; after [`promote`](Self::promote) the former primary.
    pub fn standby(&mut self) -> &mut Server {
        &mut self.servers[1 - self.primary].1
    }

    /// Makes the standby the primary. The former one is left alone: if it runs, two servers take writes, and
    /// the commits of the former one wait for a standby that it has no more.
    ///
    /// # Errors
    /// The standby does not answer.
    pub async fn promote(&mut self) -> anyhow::Result<()> {
        let promote = [
            "ALTER SYSTEM SET synchronous_standby_names = ''",
            "SELECT pg_reload_conf()",
            // It may take seconds, in which recovery ends a query that stands in its way.
            "SELECT pg_promote(false)",
        ];
        self.sql(1 - self.primary, &promote).await?;
        self.primary = 1 - self.primary;
        self.until(&TAKES_WRITES).await
    }

    /// Makes the former primary the standby of the new one. Commits that the new one lacks are gone.
    ///
    /// # Errors
    /// A server does not answer.
    pub async fn follow(&mut self) -> anyhow::Result<()> {
        let port = self.primary().port();
        self.standby().kill();
        let (place, standby) = &mut self.servers[1 - self.primary];
        self.programs.copy(place, &self.password, port).await?;
        standby.restart().await?;
        self.wait_for_standby().await
    }

    /// Makes commits wait for the standby, as soon as it follows.
    async fn wait_for_standby(&self) -> anyhow::Result<()> {
        self.sql(self.primary, &WAIT_FOR_STANDBY).await?;
        self.until(&IS_IN_STEP).await
    }

    /// Waits until statements succeed on the primary.
    async fn until(&self, statements: &[&str]) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while let Err(error) = self.sql(self.primary, statements).await {
            if Instant::now() >= deadline {
                return Err(error);
            }
            sleep(ASK_EVERY).await;
        }
        Ok(())
    }

    async fn sql(&self, server: usize, statements: &[&str]) -> anyhow::Result<()> {
        let (place, server) = &self.servers[server];
        let port = server.port();
        self.programs.sql(place, &self.password, port, statements).await
    }
}
