//! The payment provider: somebody else's service, with books of its own. Everything goes wrong here that goes
//! wrong with those.
//!
//! It can be asked to pay, and to cancel a payment by its reference. A cancellation answers whether the
//! payment was made; if it was not, it never will be, also if the request to pay is still on its way. With
//! [`Way::Key`] the reference is an idempotency key: it pays once for each. Otherwise it pays whenever it is
//! asked.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use crate::process::end_with_the_parent;
use crate::service::Way;

/// The hidden first argument that makes this program the provider.
pub(crate) const PROVIDER: &str = "--provider";

/// Longer than its clients wait.
const LATE: Duration = Duration::from_millis(500);

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS request (number INTEGER PRIMARY KEY AUTOINCREMENT, reference TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS payment (number INTEGER PRIMARY KEY AUTOINCREMENT, reference TEXT NOT NULL,
        withdrawal INTEGER NOT NULL, customer TEXT NOT NULL, cents INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS cancelled (reference TEXT PRIMARY KEY) STRICT;";

/// This makes the reference an idempotency key.
const ONCE_A_KEY: &str = "CREATE UNIQUE INDEX IF NOT EXISTS once_a_key ON payment (reference);";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// The answer carries it too.
    pub(crate) number: u64,
    pub(crate) question: Question,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    Pay {
        reference: String,
        withdrawal: i64,
        customer: String,
        cents: i64,
    },
    Cancel {
        reference: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Response {
    pub(crate) number: u64,
    pub(crate) answer: Answer,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Paid { payment: i64 },
    NotPaid { why: String },
}

/// The trouble with a request to pay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    NoAnswer,
    /// It is carried out when nobody waits any more.
    Late,
    AnswersTwice,
    Refuses,
    DiesBefore,
    DiesAfter,
}

impl Trouble {
    /// The trouble with the n-th request to pay: one of ten has some.
    fn with(request: i64) -> Self {
        match request % 60 {
            11 => Self::NoAnswer,
            17 => Self::Late,
            23 => Self::AnswersTwice,
            35 => Self::Refuses,
            41 => Self::DiesBefore,
            53 => Self::DiesAfter,
            _ => Self::None,
        }
    }
}

/// The provider's books. They are read by this program's parent too.
pub(crate) async fn open(folder: &Path) -> anyhow::Result<SqlitePool> {
    let file = folder.join("provider.db");
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(15));
    let pool = SqlitePoolOptions::new().max_connections(2);
    let pool = pool.connect_with(options).await;
    pool.with_context(|| format!("cannot open {}", file.display()))
}

/// Where the provider writes at which address it listens.
pub(crate) fn address_file(folder: &Path) -> PathBuf {
    folder.join("provider.address")
}

/// The whole life of the provider's process.
pub(crate) async fn run(folder: &Path, way: Way) -> anyhow::Result<ExitCode> {
    end_with_the_parent();
    let pool = open(folder).await?;
    sqlx::raw_sql(SCHEMA).execute(&pool).await?;
    if way == Way::Key {
        sqlx::raw_sql(ONCE_A_KEY).execute(&pool).await?;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen")?;
    let (file, new) = (address_file(folder), folder.join("provider.address.new"));
    std::fs::write(&new, listener.local_addr()?.to_string())?;
    std::fs::rename(&new, &file).context("cannot write the address")?;
    loop {
        let (stream, _) = listener.accept().await.context("cannot accept")?;
        tokio::spawn(serve(pool.clone(), stream));
    }
}

/// Answers each request for itself: a later one may be answered first.
async fn serve(pool: SqlitePool, stream: TcpStream) {
    let (reader, writer) = stream.into_split();
    let writer = Arc::new(Mutex::new(writer));
    let mut lines = BufReader::new(reader).lines();
    // A client that goes away, or sends what is no request, has no answer.
    while let Ok(Some(line)) = lines.next_line().await {
        let (pool, writer) = (pool.clone(), Arc::clone(&writer));
        tokio::spawn(async move {
            if let Err(error) = answer(&pool, &line, &writer).await {
                eprintln!("the provider cannot answer: {error:#}");
            }
        });
    }
}

async fn answer(pool: &SqlitePool, line: &str, writer: &Mutex<OwnedWriteHalf>) -> anyhow::Result<()> {
    let Request { number, question } = serde_json::from_str(line)?;
    let (answer, times) = match question {
        Question::Pay {
            reference,
            withdrawal,
            customer,
            cents,
        } => {
            let insert = sqlx::query("INSERT INTO request (reference) VALUES ($1)");
            let request = insert.bind(&reference).execute(pool).await?;
            let trouble = Trouble::with(request.last_insert_rowid());
            match trouble {
                Trouble::DiesBefore => std::process::abort(),
                Trouble::Late => tokio::time::sleep(LATE).await,
                _ => {}
            }
            let answer = match trouble {
                Trouble::Refuses => Answer::NotPaid {
                    why: "not now".to_owned(),
                },
                _ => pay(pool, &reference, withdrawal, &customer, cents).await?,
            };
            match trouble {
                Trouble::DiesAfter => std::process::abort(),
                Trouble::NoAnswer => (answer, 0),
                Trouble::AnswersTwice => (answer, 2),
                _ => (answer, 1),
            }
        }
        Question::Cancel { reference } => (cancel(pool, &reference).await?, 1),
    };
    let line = serde_json::to_string(&Response { number, answer })? + "\n";
    let mut writer = writer.lock().await;
    for _ in 0..times {
        if writer.write_all(line.as_bytes()).await.is_err() {
            // The client did not wait.
            break;
        }
    }
    Ok(())
}

/// Pays, unless the reference was cancelled, or is an idempotency key that was paid for. It is one statement:
/// a cancellation comes before it or after it.
async fn pay(
    pool: &SqlitePool,
    reference: &str,
    withdrawal: i64,
    customer: &str,
    cents: i64,
) -> anyhow::Result<Answer> {
    sqlx::query(
        "INSERT INTO payment (reference, withdrawal, customer, cents) SELECT $1, $2, $3, $4
         WHERE NOT EXISTS (SELECT 1 FROM cancelled WHERE reference = $1) ON CONFLICT DO NOTHING",
    )
    .bind(reference)
    .bind(withdrawal)
    .bind(customer)
    .bind(cents)
    .execute(pool)
    .await?;
    paid(pool, reference).await
}

/// From here on the reference is not paid for. If it was, that stands.
async fn cancel(pool: &SqlitePool, reference: &str) -> anyhow::Result<Answer> {
    let insert = sqlx::query("INSERT INTO cancelled VALUES ($1) ON CONFLICT DO NOTHING");
    insert.bind(reference).execute(pool).await?;
    paid(pool, reference).await
}

async fn paid(pool: &SqlitePool, reference: &str) -> anyhow::Result<Answer> {
    let select = sqlx::query_scalar("SELECT max(number) FROM payment WHERE reference = $1");
    let payment: Option<i64> = select.bind(reference).fetch_one(pool).await?;
    Ok(match payment {
        Some(payment) => Answer::Paid { payment },
        None => Answer::NotPaid {
            why: "it was cancelled".to_owned(),
        },
    })
}
