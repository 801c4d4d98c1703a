//! What came out of a round: balances against the sequential ledger, overlaps and tokens from the log.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, presets};
use sqlx::SqlitePool;

use crate::bank::Event;
use crate::ledger::Ledger;

/// A wait is worth counting from here on; less is what asking SQLite takes.
const A_WAIT: Duration = Duration::from_millis(20);

/// What is worth knowing about a round.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    open: usize,
    booked: usize,
    /// Updates that are not in the balances any more.
    lost: i64,
    /// Accounts with another balance than the sequential ledger's.
    wrong_accounts: usize,
    /// Sum of the differences, in cents.
    off_by: i64,
    time: Duration,
    visits: Visits,
}

/// What the log says.
#[derive(Debug, Default)]
struct Visits {
    /// Entries while somebody else was inside of the same account.
    overlaps: usize,
    /// Entries with a token that is not larger than the one before.
    token_slips: usize,
    tokens: usize,
    waits: usize,
    longest_wait: Duration,
    killed: usize,
    /// From a kill to the next entry.
    takeovers: Vec<Duration>,
}

/// A line of the log.
type Line = (String, String, String, Option<i64>, Option<i64>, i64);

impl Findings {
    pub(crate) async fn collect(pool: &SqlitePool, ledger: &Ledger, time: Duration) -> anyhow::Result<Self> {
        let accounts: Vec<(String, i64, i64)> =
            sqlx::query_as("SELECT customer, balance, bookings FROM account")
                .fetch_all(pool)
                .await
                .context("cannot read the balances")?;
        let open: i64 = sqlx::query_scalar("SELECT count(*) FROM withdrawal WHERE done = 0")
            .fetch_one(pool)
            .await
            .context("cannot count the open withdrawals")?;
        let log: Vec<Line> = sqlx::query_as(
            "SELECT event, worker, customer, fence_token, waited_us, at_us FROM log ORDER BY seq",
        )
        .fetch_all(pool)
        .await
        .context("cannot read the log")?;

        let mut expected = ledger.closing()?;
        let open = usize::try_from(open)?;
        let booked = ledger.withdrawals.len() - open;
        let mut findings = Self {
            open,
            booked,
            lost: i64::try_from(booked)?,
            time,
            visits: Visits::from_log(&log)?,
            ..Self::default()
        };
        for (customer, balance, bookings) in accounts {
            let right = expected
                .remove(&customer)
                .context("an account is not in the input")?;
            findings.lost -= bookings;
            findings.wrong_accounts += usize::from(balance != right);
            findings.off_by += (balance - right).abs();
        }
        findings.wrong_accounts += expected.len();
        Ok(findings)
    }

    /// Everything that must not happen under the lock.
    pub(crate) fn faults(&self) -> Vec<&'static str> {
        let visits = &self.visits;
        let checks = [
            (
                self.wrong_accounts == 0,
                "balances differ from the sequential ledger",
            ),
            (self.open == 0, "not all withdrawals were booked"),
            (self.lost == 0, "updates were lost"),
            (visits.overlaps == 0, "two were inside of one account"),
            (visits.token_slips == 0, "a fence token did not grow"),
            (visits.killed == 1, "no process was killed inside of a lock"),
            (
                visits.takeovers.len() == visits.killed,
                "the dead process' lock was not taken over",
            ),
        ];
        checks
            .into_iter()
            .filter(|(holds, _)| !holds)
            .map(|(_, fault)| fault)
            .collect()
    }
}

impl Visits {
    /// Walks through the log in its order. A visit lasts from `enter` to `leave` or `killed`.
    fn from_log(log: &[Line]) -> anyhow::Result<Self> {
        let mut visits = Self::default();
        let mut inside: HashMap<&str, HashSet<&str>> = HashMap::new();
        let mut tokens: BTreeMap<&str, i64> = BTreeMap::new();
        let mut killed: HashMap<&str, i64> = HashMap::new();
        for (event, worker, customer, fence_token, waited_us, at_us) in log {
            let guests = inside.entry(customer).or_default();
            let event = Event::ALL
                .into_iter()
                .find(|known| known.name() == event)
                .with_context(|| format!("unknown event {event:?} in the log"))?;
            if event != Event::Enter {
                guests.remove(worker.as_str());
                if event == Event::Killed {
                    visits.killed += 1;
                    killed.insert(customer, *at_us);
                }
                continue;
            }
            visits.overlaps += usize::from(!guests.is_empty());
            guests.insert(worker);
            if let Some(token) = *fence_token {
                visits.tokens += 1;
                let before = tokens.insert(customer, token);
                visits.token_slips += usize::from(before.is_some_and(|before| before >= token));
            }
            let waited = Duration::from_micros(waited_us.unwrap_or(0).unsigned_abs());
            visits.waits += usize::from(waited >= A_WAIT);
            visits.longest_wait = visits.longest_wait.max(waited);
            if let Some(killed_at) = killed.remove(customer.as_str()) {
                visits
                    .takeovers
                    .push(Duration::from_micros((at_us - killed_at).unsigned_abs()));
            }
        }
        Ok(visits)
    }
}

/// A row's title, and how to fill its cells.
type Row = (&'static str, fn(&Findings) -> String);

/// The table, and the line that a script looks for.
pub(crate) fn print(without: &Findings, with: &Findings) {
    let rows: [Row; 9] = [
        ("withdrawals booked", |f| f.booked.to_string()),
        ("updates lost", |f| f.lost.to_string()),
        ("accounts with a wrong balance", |f| f.wrong_accounts.to_string()),
        ("money off by", |f| money(f.off_by)),
        ("overlaps seen", |f| f.visits.overlaps.to_string()),
        ("waits", |f| waits(&f.visits)),
        ("fence tokens", |f| tokens(&f.visits)),
        ("killed inside of a lock", |f| takeover(&f.visits)),
        ("time taken", |f| format!("{:.1} s", f.time.as_secs_f64())),
    ];
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "",
        "without lock",
        "with #[distributed_lock]",
    ]);
    for (title, cell) in rows {
        table.add_row([title.to_owned(), cell(without), cell(with)]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("\n{table}\n");
    println!("with the lock,");
    println!("overlaps: {}", with.visits.overlaps);
}

fn money(cents: i64) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

fn waits(visits: &Visits) -> String {
    if visits.waits == 0 {
        return "none".into();
    }
    format!(
        "{}, longest {:.2} s",
        visits.waits,
        visits.longest_wait.as_secs_f64()
    )
}

fn tokens(visits: &Visits) -> String {
    match (visits.tokens, visits.token_slips) {
        (0, _) => "none".into(),
        (_, 0) => "grew for each account".into(),
        (all, slips) => format!("{slips} of {all} did not grow"),
    }
}

fn takeover(visits: &Visits) -> String {
    match (visits.killed, visits.takeovers.first()) {
        (0, _) => "nobody".into(),
        (_, None) => "lock not taken over".into(),
        (_, Some(after)) => format!("taken over after {:.2} s", after.as_secs_f64()),
    }
}
