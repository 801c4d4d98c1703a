//! `dblock serve`

use std::process::Stdio;
use std::time::Duration;

use dblock_tests::{Backend, on_every_store};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::program::{dblock, said};

on_every_store!(databases: the_page_is_served_to_this_host, other_hosts_need_a_word, a_port_in_use_is_told);
on_every_store!(sqlite: a_host_may_be_given_by_its_name, a_page_for_other_hosts_is_not_for_other_sites);

/// The page's answer to a request with that `Host`.
async fn asked(address: &str, request: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn the_page_is_served_to_this_host(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("order:42").acquire().await.unwrap();
    let mut child = dblock(&backend)
        .args(["serve", "--listen", "127.0.0.1:0", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
    let url = told["url"].as_str().unwrap();
    let address = url.trim_start_matches("http://").trim_end_matches('/');

    let list = asked(address, "GET /list", address).await;
    assert!(
        list.starts_with("HTTP/1.1 200 ") && list.contains("order:42"),
        "{list}"
    );
    let rebound = asked(address, "GET /list", "evil.example").await;
    assert!(
        rebound.starts_with("HTTP/1.1 403 ") && !rebound.contains("order"),
        "{rebound}"
    );
    let read_only = asked(address, "GET /confirm?action=revoke&key=order:42", address).await;
    assert!(read_only.starts_with("HTTP/1.1 403 "), "{read_only}");
    child.kill().await.unwrap();
    guard.release().await.unwrap();
}

/// Other hosts reach it, and so does a browser that shows another site's page.
async fn a_page_for_other_hosts_is_not_for_other_sites(backend: Backend) {
    let mut child = dblock(&backend)
        .args(["serve", "--listen", "0.0.0.0:0", "--access", "manage", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
    let address = told["url"].as_str().unwrap();
    let address = address.trim_start_matches("http://").trim_end_matches('/');
    let list = asked(address, "GET /list", address).await;
    assert!(list.starts_with("HTTP/1.1 200 "), "{list}");
    let rebound = asked(address, "GET /list", "evil.example").await;
    assert!(rebound.starts_with("HTTP/1.1 403 "), "{rebound}");
    child.kill().await.unwrap();
}

async fn a_host_may_be_given_by_its_name(backend: Backend) {
    let mut serve = dblock(&backend);
    let mut child = serve
        .args(["serve", "--listen", "localhost:0", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
    let address = told["url"]
        .as_str()
        .unwrap()
        .trim_start_matches("http://")
        .trim_end_matches('/');
    let list = asked(address, "GET /list", address).await;
    assert!(list.starts_with("HTTP/1.1 200 "), "{list}");
    child.kill().await.unwrap();
    for (listen, code) in [("no-such-host.invalid:0", 71), ("localhost", 64), (":7575", 64)] {
        let mut serve = dblock(&backend);
        let refused = said(serve.args(["serve", "--listen", listen])).await;
        assert_eq!(refused.code, Some(code), "{refused:?}");
    }
}

async fn other_hosts_need_a_word(backend: Backend) {
    let mut serve = dblock(&backend);
    let refused = said(serve.args(["serve", "--listen", "0.0.0.0:0"]));
    let refused = timeout(Duration::from_mins(1), refused)
        .await
        .expect("it serves nothing");
    assert_eq!((refused.code, &*refused.out), (Some(64), ""), "{refused:?}");
    assert!(refused.err.contains("--access"), "{refused:?}");
}

async fn a_port_in_use_is_told(backend: Backend) {
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = other.local_addr().unwrap().to_string();
    let refused = said(dblock(&backend).args(["serve", "--listen", &taken])).await;
    assert_eq!((refused.code, &*refused.out), (Some(71), ""), "{refused:?}");
    assert!(
        refused.err.contains(&taken) && refused.err.contains("the port is in use"),
        "{refused:?}"
    );
}
