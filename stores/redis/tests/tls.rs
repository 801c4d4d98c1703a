//! TLS: an authority of one's own, and a server that asks for the client's certificate.

#![cfg(feature = "tls-rustls")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dblock::LockManager;
use dblock::store::{Acquire, Action, Outcome, Request, Store as _, StoreError, StoreErrorKind, WakeUp};
use dblock_redis::RedisStore;
use dblock_servers::certificates::Certificates;
use dblock_servers::{Kind, Purpose, Server, is_installed};
use redis::{Client, ClientTlsConfig, TlsCertificates};
use tempfile::TempDir;
use uuid::Uuid;

/// A server that takes connections with TLS, beside those without, and the folder with its certificates: `ca`, and
/// those of `server` and `client`, each with its key.
struct Secure {
    server: Server,
    folder: TempDir,
    port: u16,
}

impl Secure {
    async fn fresh() -> Option<Self> {
        if !is_installed(Kind::Redis) || !Certificates::can_be_made() {
            dblock_tests::left_out("a Redis server with TLS", "install redis-server and openssl");
            return None;
        }
        let server = Server::fresh(Kind::Redis, Purpose::Tests).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        make_certificates(folder.path());
        let path = |name: &str| folder.path().join(name).display().to_string();
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let client = Client::open(server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut set = redis::cmd("CONFIG");
        set.arg("SET")
            .arg(&[
                "tls-ca-cert-file",
                &path("ca.pem"),
                "tls-cert-file",
                &path("server.pem"),
            ])
            .arg(&["tls-key-file", &path("server.key"), "tls-port", &port.to_string()]);
        set.exec_async(&mut connection).await.unwrap();
        Some(Self { server, folder, port })
    }

    /// The URL with these options.
    fn url(&self, options: &str) -> String {
        let (user, _) = self.server.url().split_once('@').unwrap();
        let user = user.replace("redis:", "rediss:");
        format!("{user}@localhost:{}{options}", self.port)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.path().join(name)).unwrap()
    }
}

fn make_certificates(folder: &Path) {
    let openssl = |words: &str| {
        let done = Command::new("openssl")
            .args(words.split(' '))
            .current_dir(folder)
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{words}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    };
    let new = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!(
        "{new} -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem"
    ));
    fs::write(folder.join("names"), "subjectAltName=DNS:localhost").unwrap();
    for name in ["server", "client"] {
        openssl(&format!(
            "{new} -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ));
        openssl(&format!(
            "x509 -req -days 2 -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out {name}.pem"
        ));
    }
    // The server may run as another user.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(folder.join("server.key"), fs::Permissions::from_mode(0o644)).unwrap();
}

async fn one(store: &RedisStore, key: &str) -> Result<Outcome, StoreError> {
    let ask = Acquire::new(Uuid::now_v7(), Duration::from_secs(30), "test");
    let key = dblock::Key::new(None, key).unwrap();
    let request = Request::new(key, Uuid::now_v7(), Action::Acquire(ask));
    store.apply(&[request]).await.remove(0)
}

#[tokio::test]
async fn a_url_names_the_certificates() {
    let Some(secure) = Secure::fresh().await else {
        return;
    };
    let (ca, certificate, key) = (
        secure.path("ca.pem"),
        secure.path("client.pem"),
        secure.path("client.key"),
    );
    let all = secure.url(&format!("?ca={ca}&certificate={certificate}&key={key}"));
    let locks = LockManager::builder(RedisStore::new(&all).unwrap())
        .build()
        .await
        .unwrap();
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    let store = RedisStore::new(&all).unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let listening = async { store.listen(&move |wake_up| drop(tell.send(wake_up))).await };
    tokio::select! {
        error = listening => panic!("{error}"),
        heard = told.recv() => assert_eq!(heard, Some(WakeUp::Listening)),
    }

    // Clients of the user's have them too.
    let store = RedisStore::new(&all).unwrap();
    let store = store.connect_with(|server| std::future::ready(Client::open(server)));
    let granted = one(&store, "own").await;
    assert!(matches!(granted, Ok(Outcome::Granted { .. })), "{granted:?}");

    // The server knows nobody, or is known to nobody.
    for options in [
        "",
        &format!("?ca={ca}"),
        &format!("?certificate={certificate}&key={key}"),
    ] {
        let failed = one(&RedisStore::new(&secure.url(options)).unwrap(), "k")
            .await
            .unwrap_err();
        assert_eq!(failed.kind(), StoreErrorKind::Unreachable, "{options}: {failed}");
    }
    for (options, says) in [
        (format!("?ca={key}.gone"), "No such file"),
        (format!("?ca={ca}&certificate={certificate}"), "without a key"),
        (format!("?certificate={certificate}&key={ca}"), "private key"),
    ] {
        let refused = RedisStore::new(&secure.url(&options)).unwrap_err();
        assert!(refused.to_string().contains(says), "{options}: {refused}");
    }
}

#[tokio::test]
async fn clients_of_the_users_have_certificates_that_are_in_no_file() {
    let Some(secure) = Secure::fresh().await else {
        return;
    };
    let certificates = TlsCertificates {
        client_tls: Some(ClientTlsConfig {
            client_cert: secure.read("client.pem"),
            client_key: secure.read("client.key"),
        }),
        root_cert: Some(secure.read("ca.pem")),
    };
    let store = RedisStore::new(&secure.url("")).unwrap();
    let store = store
        .connect_with(move |server| std::future::ready(Client::build_with_tls(server, certificates.clone())));
    let granted = one(&store, "k").await;
    assert!(matches!(granted, Ok(Outcome::Granted { .. })), "{granted:?}");
}
