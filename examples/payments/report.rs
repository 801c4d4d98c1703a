//! The result of a round: the provider's payments against the input, and our books against both.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, presets};
use dblock::store::{RecordFilter, RecordState};

use crate::books::Books;
use crate::ledger::Ledger;
use crate::provider;
use crate::round::Events;
use crate::service::Way;
use crate::worker::Step;

#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) way: Way,
    withdrawals: usize,
    paid_once: usize,
    paid_again: usize,
    never_paid: usize,
    /// The provider's payments, less those that it should have made.
    too_much: i64,
    /// Withdrawals that our books and the provider's tell differently.
    disagree: usize,
    wrong_accounts: usize,
    /// Runs that are still processing.
    in_doubt: usize,
    events: Events,
}

/// A payment in the provider's books: its number and its amount.
type Payment = (i64, i64);

impl Findings {
    pub(crate) async fn collect(
        way: Way,
        books: &Books,
        folder: &Path,
        ledger: &Ledger,
        events: Events,
    ) -> anyhow::Result<Self> {
        let paid = payments(folder).await?;
        let booked: HashMap<i64, Option<i64>> = books.payments().await?.into_iter().collect();
        let of = |id: i64| paid.get(&id).map_or(&[][..], Vec::as_slice);
        let count = |wanted: fn(usize) -> bool| {
            let withdrawals = ledger.withdrawals.iter();
            withdrawals.filter(|one| wanted(of(one.id).len())).count()
        };
        let owed: i64 = ledger.withdrawals.iter().map(|one| one.cents).sum();
        let total: i64 = paid.values().flatten().map(|(_, cents)| cents).sum();
        let agrees = |id: i64, cents: i64| match of(id) {
            [(number, amount)] => booked.get(&id) == Some(&Some(*number)) && *amount == cents,
            _ => false,
        };
        let expected = ledger.closing()?;
        let balances = books.balances().await?;
        let wrong = balances
            .iter()
            .filter(|(customer, balance)| expected.get(customer) != Some(balance));
        Ok(Self {
            way,
            withdrawals: ledger.withdrawals.len(),
            paid_once: count(|payments| payments == 1),
            paid_again: count(|payments| payments > 1),
            never_paid: count(|payments| payments == 0),
            too_much: total - owed,
            disagree: ledger
                .withdrawals
                .iter()
                .filter(|one| !agrees(one.id, one.cents))
                .count(),
            wrong_accounts: wrong.count() + expected.len().abs_diff(balances.len()),
            in_doubt: in_doubt(books).await?,
            events,
        })
    }

    /// Title, value, and whether it may be so.
    fn rows(&self) -> [(&'static str, String, bool); 11] {
        let all_steps = Step::ALL.iter().all(|step| self.events.kills.contains(step));
        let none = |title, count: usize| (title, count.to_string(), count == 0);
        let sign = if self.too_much < 0 { "-" } else { "" };
        let cents = self.too_much.abs();
        [
            (
                "withdrawals paid once",
                self.paid_once.to_string(),
                self.paid_once == self.withdrawals,
            ),
            none("paid more than once", self.paid_again),
            none("never paid", self.never_paid),
            (
                "money paid too much",
                format!("{sign}{}.{:02}", cents / 100, cents % 100),
                self.too_much == 0,
            ),
            none("books differ from the provider", self.disagree),
            none("accounts with a wrong balance", self.wrong_accounts),
            none("runs left in doubt", self.in_doubt),
            ("processes killed", self.events.kills.len().to_string(), all_steps),
            (
                "provider died",
                format!("{} times", self.events.deaths),
                self.events.deaths > 0,
            ),
            ("decided by asking it", self.events.asked.to_string(), true),
            (
                "time taken",
                format!("{:.1} s", self.events.time.as_secs_f64()),
                true,
            ),
        ]
    }

    /// Everything that is not as it must be.
    pub(crate) fn faults(&self) -> Vec<String> {
        let wrong = self.rows().into_iter().filter(|(_, _, is_right)| !is_right);
        wrong
            .map(|(title, value, _)| format!("with {}, {title}: {value}", self.way.title()))
            .collect()
    }
}

/// The provider's payments by withdrawal.
async fn payments(folder: &Path) -> anyhow::Result<HashMap<i64, Vec<Payment>>> {
    let pool = provider::open(folder).await?;
    let rows: Vec<(i64, i64, i64)> = sqlx::query_as("SELECT withdrawal, number, cents FROM payment")
        .fetch_all(&pool)
        .await
        .context("cannot read the provider's books")?;
    pool.close().await;
    let mut payments: HashMap<i64, Vec<Payment>> = HashMap::new();
    for (withdrawal, number, cents) in rows {
        payments.entry(withdrawal).or_default().push((number, cents));
    }
    Ok(payments)
}

async fn in_doubt(books: &Books) -> anyhow::Result<usize> {
    let locks = books.lock_manager().await?;
    let filter = RecordFilter::new().state(RecordState::Processing);
    let records = locks
        .admin()
        .records(filter)
        .await
        .context("cannot read the records")?;
    locks.shutdown(std::time::Duration::from_secs(1)).await;
    Ok(records.len())
}

/// The table, a column for each way.
pub(crate) fn print(findings: &[Findings]) {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_header(std::iter::once("").chain(findings.iter().map(|found| found.way.title())));
    let columns: Vec<_> = findings.iter().map(Findings::rows).collect();
    for (row, (title, _, _)) in columns.first().into_iter().flatten().enumerate() {
        let cells = columns.iter().map(|column| column[row].1.clone());
        table.add_row(std::iter::once((*title).to_owned()).chain(cells));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("\n{table}\n");
}
