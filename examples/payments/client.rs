//! Asks the payment provider: a line of JSON there, a line of JSON back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::ledger::Withdrawal;
use crate::provider::{Answer, Question, Request, Response, address_file};

/// How long the provider may take.
const PATIENCE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct Client {
    /// Where the provider says at which address it listens: after it has died, at another one.
    address: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<(Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf)>,
    /// The number of the last request.
    last: u64,
}

impl Client {
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            address: address_file(folder),
            state: Mutex::default(),
        }
    }

    /// Asks for a payment. An error means that nobody knows whether it was made.
    pub(crate) async fn pay(&self, withdrawal: &Withdrawal, reference: &str) -> anyhow::Result<Answer> {
        let Withdrawal { id, customer, cents } = withdrawal;
        self.ask(Question::Pay {
            reference: reference.to_owned(),
            withdrawal: *id,
            customer: customer.clone(),
            cents: *cents,
        })
        .await
    }

    /// Cancels a payment, if it was not made yet. An error means that this may be so or not.
    pub(crate) async fn cancel(&self, reference: &str) -> anyhow::Result<Answer> {
        let reference = reference.to_owned();
        self.ask(Question::Cancel { reference }).await
    }

    async fn ask(&self, question: Question) -> anyhow::Result<Answer> {
        let mut state = self.state.lock().await;
        state.last += 1;
        let number = state.last;
        let answer = timeout(PATIENCE, self.exchange(&mut state, Request { number, question })).await;
        let answer = answer.map_err(anyhow::Error::from).flatten();
        if answer.is_err() {
            state.connection = None;
        }
        answer
    }

    async fn exchange(&self, state: &mut State, request: Request) -> anyhow::Result<Answer> {
        let (lines, writer) = match &mut state.connection {
            Some(connection) => connection,
            none => {
                let address = tokio::fs::read_to_string(&self.address).await?;
                let (reader, writer) = TcpStream::connect(address).await?.into_split();
                none.insert((BufReader::new(reader).lines(), writer))
            }
        };
        let line = serde_json::to_string(&request)? + "\n";
        writer.write_all(line.as_bytes()).await?;
        loop {
            let line = lines.next_line().await?.context("the provider is gone")?;
            let response: Response = serde_json::from_str(&line)?;
            // The provider may answer a former request for the second time.
            if response.number == request.number {
                return Ok(response.answer);
            }
        }
    }
}
