//! Behind a pooler in transaction mode the store works, and does not listen.
//!
//! Two small poolers of our own, since `PgBouncer` may not be installed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use dblock::store::{PostgresStore, Store, StoreErrorKind};
use sqlx::Connection as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use crate::bench::{Bench, acquire, ask, token};

async fn refuses_to_listen(bench: &Bench, store: &PostgresStore) {
    let error = store.listen(&|wake_up| panic!("told {wake_up:?}")).await;
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("poll"), "{error}");
    // Nobody has been left with the table's channel.
    let mut user = bench.user().await;
    let listening =
        "SELECT FROM pg_stat_activity WHERE query LIKE 'LISTEN \"dblock_' || $1::regclass::oid || '\"'";
    let found = sqlx::query(listening)
        .bind(&bench.table)
        .fetch_optional(&mut user)
        .await
        .unwrap();
    assert!(found.is_none());
    user.close().await.unwrap();
}

/// A pooler whose clients share one session of the server, one statement after the other. Where it listens.
pub(crate) async fn lending_pooler(server: SocketAddr) -> SocketAddr {
    let pooler = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = pooler.local_addr().unwrap();
    tokio::spawn(async move {
        let session = Arc::new(Mutex::new(None));
        while let Ok((client, _)) = pooler.accept().await {
            tokio::spawn(lend(client, server, Arc::clone(&session)));
        }
    });
    address
}

#[tokio::test]
async fn a_pooler_that_lends_sessions_is_found_out() {
    let Some(bench) = Bench::new("pooler_lends").await else {
        return;
    };
    let store = bench.store_at(lending_pooler(bench.address()).await);
    refuses_to_listen(&bench, &store).await;
}

/// Each client has a session of its own, but notifications are not passed on.
#[tokio::test]
async fn a_pooler_that_keeps_notifications_is_found_out() {
    let Some(bench) = Bench::new("pooler_keeps").await else {
        return;
    };
    let pooler = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = bench.store_at(pooler.local_addr().unwrap());
    let server = bench.address();
    tokio::spawn(async move {
        while let Ok((client, _)) = pooler.accept().await {
            tokio::spawn(keep_notifications(client, server));
        }
    });
    refuses_to_listen(&bench, &store).await;
    token(&ask(&store, &acquire("a")).await);
}

/// Lends the only session to `client`, from the first message of a statement to the server's `ReadyForQuery`.
async fn lend(
    mut client: TcpStream,
    server: SocketAddr,
    session: Arc<Mutex<Option<TcpStream>>>,
) -> io::Result<()> {
    let startup = untyped_message(&mut client).await?;
    {
        let mut session = session.lock().await;
        if session.is_none() {
            let mut connection = TcpStream::connect(server).await?;
            connection.write_all(&startup).await?;
            log_in(&mut client, &mut connection).await?;
            *session = Some(connection);
        } else {
            // AuthenticationOk and ReadyForQuery.
            client.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await?;
        }
    }
    loop {
        let mut request = message(&mut client).await?;
        let mut session = session.lock().await;
        let connection = session.as_mut().unwrap();
        loop {
            match request[0] {
                b'X' => return Ok(()),
                // Query and Sync.
                b'Q' | b'S' => break,
                _ => {}
            }
            connection.write_all(&request).await?;
            request = message(&mut client).await?;
        }
        connection.write_all(&request).await?;
        until_ready(connection, &mut client).await?;
    }
}

async fn log_in(client: &mut TcpStream, server: &mut TcpStream) -> io::Result<()> {
    loop {
        let answer = message(server).await?;
        client.write_all(&answer).await?;
        match (answer[0], answer[8]) {
            // A password is asked for, or the next step of one.
            (b'R', 3 | 5 | 10 | 11) => server.write_all(&message(client).await?).await?,
            (b'R', 0) => return until_ready(server, client).await,
            _ => {}
        }
    }
}

async fn until_ready(server: &mut TcpStream, client: &mut TcpStream) -> io::Result<()> {
    loop {
        let answer = message(server).await?;
        client.write_all(&answer).await?;
        if answer[0] == b'Z' {
            return Ok(());
        }
    }
}

/// Forwards everything but `NotificationResponse`.
async fn keep_notifications(mut client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    server.write_all(&untyped_message(&mut client).await?).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let down = async {
        loop {
            let answer = message(&mut from_server).await?;
            if answer[0] != b'A' {
                to_client.write_all(&answer).await?;
            }
        }
    };
    tokio::select! {
        end = tokio::io::copy(&mut from_client, &mut to_server) => end.map(drop),
        end = down => end,
    }
}

/// A message of the protocol: type, length and content.
async fn message(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let mut message = vec![from.read_u8().await?];
    message.extend(untyped_message(from).await?);
    Ok(message)
}

/// The first message of a client, which has no type.
async fn untyped_message(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut message = vec![0; length as usize];
    message[..4].copy_from_slice(&length.to_be_bytes());
    from.read_exact(&mut message[4..]).await?;
    Ok(message)
}
