//! How a withdrawal is paid. The provider's payment and our booking are in two databases, and no transaction
//! spans both. Between them this process may die, or never hear the answer.
//!
//! [`Service::pay_under_lock`] forgets what it has begun. The other two remember it:
//!
//! - [`Service::pay_and_ask`] is for a provider that pays whatever it is asked to pay, and can be asked about
//!   a payment by its reference. An attempt whose end is unknown is not repeated before the provider has said
//!   what came of it.
//! - [`Service::pay_by_key`] is for a provider that pays once for each idempotency key. Repeating is safe
//!   there.
//!
//! Both book in the transaction that records the run: the booking is made once, whatever dies.

use std::fmt;
use std::time::Duration;

use anyhow::Context as _;
use dblock::store::RecordState;
use dblock::{LockError, LockManager, Resolution, RunError, current_run};
use dblock::{distributed_lock, run_once};
use serde::{Deserialize, Serialize};

use crate::books::Books;
use crate::client::Client;
use crate::ledger::Withdrawal;
use crate::provider::Answer;
use crate::worker::{Step, Steps};

/// How long an outcome is remembered: longer than anything repeats a payment.
const MONTH: Duration = Duration::from_hours(30 * 24);

/// How withdrawals are paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Under a lock alone.
    Lock,
    /// `#[run_once]`, and the provider is asked about what is in doubt.
    Ask,
    /// `#[run_once]`, and the provider takes an idempotency key.
    Key,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Lock, Self::Ask, Self::Key];

    pub(crate) fn parse(word: &str) -> anyhow::Result<Self> {
        let way = Self::ALL.into_iter().find(|way| way.to_string() == word);
        way.with_context(|| format!("there is no {word:?}; expected lock, ask or key"))
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Lock => "a lock alone",
            Self::Ask => "run_once, asks",
            Self::Key => "run_once, with a key",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "lock",
            Self::Ask => "ask",
            Self::Key => "key",
        })
    }
}

/// The provider's word for a payment. It is the result that `run_once` remembers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Receipt {
    /// The number of the payment in the provider's books.
    pub(crate) payment: i64,
}

/// The reason why a withdrawal was not paid by this call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PayError {
    /// The provider has said that it did not pay.
    #[error("the provider did not pay: {0}")]
    NotPaid(String),
    /// The provider did not answer: it may have paid.
    #[error("no answer from the provider: {0}")]
    NoAnswer(String),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("the books cannot be used: {0}")]
    Books(#[from] sqlx::Error),
}

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) books: Books,
    pub(crate) locks: LockManager,
    pub(crate) provider: Client,
    /// Where this process is to be killed.
    pub(crate) steps: Steps,
}

impl Service {
    /// Pays a withdrawal, unless it is paid. May be called again and again, by any process.
    pub(crate) async fn pay(&self, way: Way, withdrawal: &Withdrawal) -> Result<(), PayError> {
        match way {
            Way::Lock => self.pay_under_lock(withdrawal).await,
            Way::Key => self.pay_by_key(withdrawal).await.map(drop),
            Way::Ask => match self.pay_and_ask(withdrawal).await {
                Err(PayError::Lock(LockError::Run {
                    reason: RunError::InDoubt { .. },
                    ..
                })) => self.clear_up(withdrawal).await,
                paid => paid.map(drop),
            },
        }
    }

    /// One process at a time, and not if it is booked. All that is missing is a memory of what was begun.
    #[distributed_lock(key = "withdrawal:{withdrawal.id}", ttl = "2s", wait = "10s", manager = self.locks)]
    async fn pay_under_lock(&self, withdrawal: &Withdrawal) -> Result<(), PayError> {
        if self.books.is_paid(withdrawal).await? {
            return Ok(());
        }
        let token = dblock::current().map_or(0, |lock| lock.fence_token());
        let reference = reference(&key(withdrawal), token);
        let receipt = self.ask_to_pay(withdrawal, &reference).await?;
        self.books.book(withdrawal, receipt, None, &self.steps).await
    }

    /// For a provider that cannot be asked twice. The reference names the attempt: a later one has a larger
    /// token.
    ///
    /// An `Err` says that nothing was paid. While that is unknown, this function does not return.
    #[run_once(key = "withdrawal:{withdrawal.id}", remember = "30d", fingerprint = withdrawal, on_crash = "stop",
               ttl = "2s", wait = "10s", manager = self.locks)]
    async fn pay_and_ask(&self, withdrawal: &Withdrawal) -> Result<Receipt, PayError> {
        let run = current_run().ok_or(LockError::NoManager)?;
        let reference = reference(run.full_key(), run.fence_token());
        let receipt = match self.ask_to_pay(withdrawal, &reference).await {
            Err(PayError::NoAnswer(_)) => self.what_came_of(&reference).await?,
            answer => answer?,
        };
        self.books
            .book(withdrawal, receipt, Some(&run), &self.steps)
            .await?;
        Ok(receipt)
    }

    /// For a provider that pays once for each idempotency key: the key of the run. Every attempt gives the
    /// same.
    #[run_once(key = "withdrawal:{withdrawal.id}", remember = "30d", fingerprint = withdrawal, on_crash = "retry",
               ttl = "2s", wait = "10s", manager = self.locks)]
    async fn pay_by_key(&self, withdrawal: &Withdrawal) -> Result<Receipt, PayError> {
        let run = current_run().ok_or(LockError::NoManager)?;
        let receipt = self.ask_to_pay(withdrawal, run.full_key()).await?;
        self.books
            .book(withdrawal, receipt, Some(&run), &self.steps)
            .await?;
        Ok(receipt)
    }

    /// Decides about a run in doubt, as an operator would: the provider knows what came of the attempt that
    /// crashed.
    ///
    /// It holds the lock while it asks, so no other attempt begins in between. `resolve` enters the same lock
    /// again.
    async fn clear_up(&self, withdrawal: &Withdrawal) -> Result<(), PayError> {
        let key = key(withdrawal);
        let clear_up = async {
            let found = self.locks.admin().record::<Receipt>(&key).await?;
            let Some(in_doubt) = found.filter(|found| found.record.state == RecordState::Processing) else {
                return Ok(());
            };
            let reference = reference(&key, in_doubt.record.fence_token);
            let resolution = match self.what_came_of(&reference).await {
                Ok(receipt) => {
                    // Booked first: once the run has succeeded, nobody looks at it again.
                    self.books.book(withdrawal, receipt, None, &self.steps).await?;
                    Resolution::succeeded(&receipt, MONTH)?
                }
                Err(PayError::NotPaid(_)) => Resolution::RunAgain,
                Err(error) => return Err(error),
            };
            self.locks.admin().resolve(&in_doubt.record, resolution).await?;
            println!("{ASKED}");
            Ok(())
        };
        let lock = self.locks.lock(&key).ttl(Duration::from_secs(2));
        lock.wait(Duration::from_secs(10)).run(clear_up).await?
    }

    async fn ask_to_pay(&self, withdrawal: &Withdrawal, reference: &str) -> Result<Receipt, PayError> {
        self.steps.reached(Step::BeforeTheProvider).await;
        let answer = self.provider.pay(withdrawal, reference).await;
        self.steps.reached(Step::AfterTheProvider).await;
        receipt(answer)
    }

    /// Asks about an attempt until the provider answers. From then on it will not pay for this reference any
    /// more, even if the request is still on its way. "I have never heard of it" would not do.
    async fn what_came_of(&self, reference: &str) -> Result<Receipt, PayError> {
        loop {
            match receipt(self.provider.cancel(reference).await) {
                Err(PayError::NoAnswer(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
                answer => return answer,
            }
        }
    }
}

/// A worker prints this line when a run in doubt is decided.
pub(crate) const ASKED: &str = "asked";

fn key(withdrawal: &Withdrawal) -> String {
    format!("withdrawal:{}", withdrawal.id)
}

/// The name by which the provider knows an attempt.
fn reference(key: &str, fence_token: i64) -> String {
    format!("{key}@{fence_token}")
}

fn receipt(answer: anyhow::Result<Answer>) -> Result<Receipt, PayError> {
    match answer {
        Ok(Answer::Paid { payment }) => Ok(Receipt { payment }),
        Ok(Answer::NotPaid { why }) => Err(PayError::NotPaid(why)),
        Err(error) => Err(PayError::NoAnswer(format!("{error:#}"))),
    }
}
