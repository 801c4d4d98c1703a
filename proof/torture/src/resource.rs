//! A resource that checks fence tokens: it refuses a write with a smaller token than an earlier one.
//! The runner serves it on the loopback, past the proxies, and records every write that arrives.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::history::{Event, Journal};
use crate::process_id::ProcessId;

/// A write on its way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Write {
    pub(crate) from: ProcessId,
    pub(crate) call: u64,
    pub(crate) key: String,
    pub(crate) token: i64,
    /// When it was sent.
    pub(crate) sent: i64,
}

/// The resource's side.
#[derive(Debug)]
pub(crate) struct Resource {
    listener: TcpListener,
    journal: Journal,
    /// The largest token seen, by key.
    last: RefCell<HashMap<String, i64>>,
}

impl Resource {
    pub(crate) async fn listen(journal: Journal) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        Ok(Self {
            listener: listener.context("a port for the resource")?,
            journal,
            last: RefCell::default(),
        })
    }

    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        self.listener.local_addr().context("the resource's port")
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(&self) {
        let mut clients = FuturesUnordered::new();
        loop {
            tokio::select! {
                client = self.listener.accept() => {
                    if let Ok((stream, _)) = client {
                        clients.push(self.client(stream));
                    }
                }
                Some(()) = clients.next() => {}
            }
        }
    }

    /// Serves one client until it goes. Half a line is from a process that was killed.
    async fn client(&self, mut stream: TcpStream) {
        let (reader, mut writer) = stream.split();
        let mut lines = BufReader::new(reader).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Ok(write) = serde_json::from_str(&line) else {
                return;
            };
            let answer: &[u8] = if self.take(write) {
                b"accepted\n"
            } else {
                b"stale\n"
            };
            if writer.write_all(answer).await.is_err() {
                return;
            }
        }
    }

    fn take(&self, write: Write) -> bool {
        let mut seen = self.last.borrow_mut();
        let last = seen.entry(write.key.clone()).or_insert(i64::MIN);
        let accepted = write.token >= *last;
        self.journal.write(Event::Write {
            from: write.from,
            call: write.call,
            key: write.key,
            token: write.token,
            sent: write.sent,
            last: *last,
            accepted,
        });
        *last = write.token.max(*last);
        accepted
    }
}

/// The client's side, with its free connections.
#[derive(Debug)]
pub(crate) struct ResourceClient {
    address: SocketAddr,
    free: std::sync::Mutex<Vec<BufReader<TcpStream>>>,
}

impl ResourceClient {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            free: std::sync::Mutex::default(),
        }
    }

    /// Whether the write was accepted. A dropped future closes its connection.
    pub(crate) async fn write(&self, write: &Write) -> anyhow::Result<bool> {
        let free = self.free.lock().expect("nobody panics with it").pop();
        let mut stream = match free {
            Some(stream) => stream,
            None => BufReader::new(TcpStream::connect(self.address).await?),
        };
        let mut line = serde_json::to_vec(write)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        anyhow::ensure!(!answer.is_empty(), "the resource has gone");
        self.free.lock().expect("nobody panics with it").push(stream);
        Ok(answer == "accepted\n")
    }
}
