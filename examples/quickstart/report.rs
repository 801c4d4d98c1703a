//! The result of a round: balances against the sequential ledger, overlaps and tokens from the log.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, presets};
use sqlx::SqlitePool;

use crate::ledger::Ledger;

/// A wait is worth counting from here on; less is what asking SQLite takes.
const A_WAIT: Duration = Duration::from_millis(20);

/// A row of the log: event, worker, customer, fence token, waiting time and time, both in µs.
type Entry = (String, String, String, Option<i64>, Option<i64>, i64);

/// The result of a round.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    withdrawals: usize,
    booked: usize,
    /// Updates that are not in the balances any more.
    lost: i64,
    /// Accounts with another balance than the sequential ledger's.
    wrong_accounts: usize,
    /// Sum of the differences, in cents.
    off_by: i64,
    time: Duration,
    /// Entries while another worker held the lock on the same account.
    pub(crate) overlaps: usize,
    tokens: usize,
    /// Entries with a token that is not larger than the one before.
    token_slips: usize,
    waits: usize,
    longest_wait: Duration,
    killed: bool,
    /// From the kill to the next entry into the same account.
    takeover: Option<Duration>,
}

impl Findings {
    pub(crate) async fn collect(pool: &SqlitePool, ledger: &Ledger, time: Duration) -> anyhow::Result<Self> {
        let booked = usize::try_from(crate::bank::done(pool).await?)?;
        let mut findings = Self {
            withdrawals: ledger.withdrawals.len(),
            booked,
            lost: i64::try_from(booked)?,
            time,
            ..Self::default()
        };
        let expected = ledger.closing()?;
        let accounts: Vec<(String, i64, i64)> =
            sqlx::query_as("SELECT customer, balance, bookings FROM account")
                .fetch_all(pool)
                .await
                .context("cannot read the balances")?;
        for (customer, balance, bookings) in accounts {
            let off_by = (balance - expected[&customer]).abs();
            findings.lost -= bookings;
            findings.wrong_accounts += usize::from(off_by != 0);
            findings.off_by += off_by;
        }
        findings.read_log(pool).await?;
        Ok(findings)
    }

    /// Walks through the log in its order. A visit lasts from `enter` to `leave` or `killed`.
    async fn read_log(&mut self, pool: &SqlitePool) -> anyhow::Result<()> {
        let log: Vec<Entry> = sqlx::query_as(
            "SELECT event, worker, customer, fence_token, waited_us, at_us FROM log ORDER BY seq",
        )
        .fetch_all(pool)
        .await
        .context("cannot read the log")?;
        let micros = |length: i64| Duration::from_micros(length.unsigned_abs());
        let mut inside: HashMap<&str, HashSet<&str>> = HashMap::new();
        let mut tokens: HashMap<&str, i64> = HashMap::new();
        let mut killed: Option<(&str, i64)> = None;
        for (event, worker, customer, fence_token, waited_us, at_us) in &log {
            let guests = inside.entry(customer).or_default();
            if event != "enter" {
                guests.remove(worker.as_str());
                if event == "killed" {
                    killed = Some((customer.as_str(), *at_us));
                    self.killed = true;
                }
                continue;
            }
            self.overlaps += usize::from(!guests.is_empty());
            guests.insert(worker);
            if let Some(token) = *fence_token {
                self.tokens += 1;
                let before = tokens.insert(customer, token);
                self.token_slips += usize::from(before.is_some_and(|before| before >= token));
            }
            let waited = micros(waited_us.unwrap_or(0));
            self.waits += usize::from(waited >= A_WAIT);
            self.longest_wait = self.longest_wait.max(waited);
            if let Some((_, killed_at)) = killed.take_if(|killed| killed.0 == customer) {
                self.takeover = Some(micros(at_us - killed_at));
            }
        }
        Ok(())
    }

    /// Title, value, and whether it may be so under the lock.
    fn rows(&self) -> [(&'static str, String, bool); 9] {
        let waits = match self.waits {
            0 => "none".into(),
            waits => format!("{waits}, longest {:.2} s", self.longest_wait.as_secs_f64()),
        };
        let tokens = match (self.tokens, self.token_slips) {
            (0, _) => "none".into(),
            (_, 0) => "grew for each account".into(),
            (all, slips) => format!("{slips} of {all} did not grow"),
        };
        let takeover = match (self.killed, self.takeover) {
            (false, _) => "nobody".into(),
            (true, None) => "not taken over".into(),
            (true, Some(after)) => format!("taken over after {:.2} s", after.as_secs_f64()),
        };
        let money = format!("{}.{:02}", self.off_by / 100, self.off_by % 100);
        [
            (
                "withdrawals booked",
                self.booked.to_string(),
                self.booked == self.withdrawals,
            ),
            ("updates lost", self.lost.to_string(), self.lost == 0),
            (
                "accounts with a wrong balance",
                self.wrong_accounts.to_string(),
                self.wrong_accounts == 0,
            ),
            ("money off by", money, self.off_by == 0),
            ("overlaps seen", self.overlaps.to_string(), self.overlaps == 0),
            ("waits", waits, true),
            ("fence tokens", tokens, self.tokens > 0 && self.token_slips == 0),
            ("killed inside of a lock", takeover, self.takeover.is_some()),
            ("time taken", format!("{:.1} s", self.time.as_secs_f64()), true),
        ]
    }

    /// Everything that must not happen under the lock.
    pub(crate) fn faults(&self) -> Vec<String> {
        let wrong = self.rows().into_iter().filter(|(_, _, is_right)| !is_right);
        wrong
            .map(|(title, value, _)| format!("{title}: {value}"))
            .collect()
    }
}

/// The table, and the line that a script looks for.
pub(crate) fn print(without: &Findings, with: &Findings) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "",
        "without lock",
        "with #[distributed_lock]",
    ]);
    for ((title, without, _), (_, with, _)) in without.rows().into_iter().zip(with.rows()) {
        table.add_row([title.to_owned(), without, with]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("\n{table}\n");
    println!("with the lock,");
    println!("overlaps: {}", with.overlaps);
}
