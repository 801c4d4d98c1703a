//! A server that gives the answers it is told, in the protocol of Redis.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A free address to serve at.
pub(crate) async fn bind() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Answers each command until the test ends. Commands that `answer` does not know get OK.
pub(crate) fn serve(
    listener: TcpListener,
    answer: impl Fn(&[String]) -> Option<String> + Clone + Send + 'static,
) {
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(talk(client, answer.clone()));
        }
    });
}

async fn talk(client: TcpStream, answer: impl Fn(&[String]) -> Option<String>) {
    let mut client = BufReader::new(client);
    while let Some(words) = command(&mut client).await {
        let answer = answer(&words).unwrap_or_else(|| "+OK\r\n".to_owned());
        if client.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn command(client: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..number(client).await? {
        let mut word = vec![0; number(client).await? + 2];
        client.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Some(words)
}

/// Of a line such as `*3` or `$5`.
async fn number(client: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

/// A text as an answer.
pub(crate) fn text(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}
