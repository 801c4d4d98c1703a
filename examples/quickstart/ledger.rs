//! The input, and the balances that must come out of it. Money is in cents: integers, nothing is rounded.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, ensure};

/// The withdrawals to book, and the balances to start from.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Opening balance by customer.
    pub(crate) opening: BTreeMap<String, i64>,
    pub(crate) withdrawals: Vec<Withdrawal>,
}

#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Withdrawal {
    pub(crate) id: i64,
    pub(crate) customer: String,
    pub(crate) cents: i64,
}

impl Ledger {
    /// Reads `examples/data`.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
        let opening = read_csv(&data.join("accounts.csv"), |[customer, cents]| {
            Ok((customer.to_owned(), number(cents)?))
        })?;
        let withdrawals = read_csv(&data.join("withdrawals.csv"), |[id, customer, cents]| {
            Ok(Withdrawal {
                id: number(id)?,
                customer: customer.to_owned(),
                cents: number(cents)?,
            })
        })?;
        let ledger = Self {
            opening: opening.into_iter().collect(),
            withdrawals,
        };
        ledger.closing()?;
        Ok(ledger)
    }

    /// The balances after booking one withdrawal after the other.
    pub(crate) fn closing(&self) -> anyhow::Result<BTreeMap<String, i64>> {
        let mut balances = self.opening.clone();
        for withdrawal in &self.withdrawals {
            let Withdrawal { id, customer, cents } = withdrawal;
            let balance = balances
                .get_mut(customer)
                .with_context(|| format!("withdrawal {id} is from {customer:?}, who has no account"))?;
            ensure!(*cents > 0, "withdrawal {id} is not of a positive amount");
            *balance -= cents;
            ensure!(
                *balance >= 0,
                "withdrawal {id} overdraws the account of {customer:?}"
            );
        }
        Ok(balances)
    }
}

/// Reads a file of `N` comma-separated columns below a line of titles. Fields have no quotes.
fn read_csv<T, const N: usize>(
    path: &Path,
    row: impl Fn([&str; N]) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().zip(1..).skip(1);
    lines
        .filter(|(line, _)| !line.is_empty())
        .map(|(line, at)| {
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            <[&str; N]>::try_from(fields)
                .map_err(|fields| anyhow::anyhow!("{} fields instead of {N}", fields.len()))
                .and_then(&row)
                .with_context(|| format!("{}, line {at}", path.display()))
        })
        .collect()
}

fn number(field: &str) -> anyhow::Result<i64> {
    i64::from_str(field).with_context(|| format!("{field:?} is not a whole number"))
}
