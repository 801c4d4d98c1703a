//! Servers that are asked in plain text, and what they answer: ZooKeeper's words of four letters, and etcd's
//! pages.

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The answer to `text` of the server behind a URL.
pub(super) async fn ask(url: &str, text: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(host(url)?).await?;
    stream.write_all(text.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The answer to `GET path`.
pub(super) async fn get(url: &str, path: &str) -> anyhow::Result<String> {
    ask(url, &format!("GET {path} HTTP/1.0\r\n\r\n")).await
}

/// How many connections are open to the server of a URL, when it runs on this machine.
pub(super) fn connections(url: &str) -> anyhow::Result<u64> {
    const ESTABLISHED: &str = "01";
    let (_, port) = host(url)?.rsplit_once(':').context("the URL has a port")?;
    let port = format!(":{:04X}", port.parse::<u16>()?);
    let files =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let lines = files.iter().flat_map(|file| file.lines());
    let ours = lines.filter(|line| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|there| there.ends_with(&port)) && fields.next() == Some(ESTABLISHED)
    });
    Ok(ours.count() as u64)
}

/// The first host and its port.
fn host(url: &str) -> anyhow::Result<&str> {
    let (_, rest) = url.split_once("://").context("a URL has `://`")?;
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split([',', '/']).next().context("the URL names a host")
}
