//! A throw-away etcd: one member, with TLS if that is wanted, or three that form a cluster.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::account::Account;
use crate::certificates::Certificates;
use crate::launch::{Launch, Probe, free_port};
use crate::programs::{self, Version};
use crate::{Ensemble, Server, temporary_folder};

/// What a member does with logins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// Its default: it remembers who has logged in.
    Simple,
    /// It signs what it tells those who log in, and each change of a user or a role makes that void.
    Jwt,
}

/// Starts one member that speaks TLS, and takes clients with a certificate of the same authority only.
/// Authentication is off until somebody switches it on.
///
/// # Errors
/// It is not installed, or does not start.
pub async fn start_with_tls(certificates: &Certificates, tokens: Tokens) -> anyhow::Result<Server> {
    let programs = Programs::find().context("etcd is not installed")?;
    let peers = [("one", free_port()?)];
    let tls = Some((certificates, tokens));
    programs.member(temporary_folder()?, "one", &peers, tls).await
}

/// The server's program.
#[derive(Debug)]
pub(crate) struct Programs {
    server: PathBuf,
    version: Version,
}

impl Programs {
    pub(crate) fn find() -> Option<Self> {
        let server = programs::in_path("etcd")?;
        let version = version(&programs::version_text(&server)?)?;
        Some(Self { server, version })
    }

    /// Starts a cluster of one with its files in `top`.
    pub(crate) async fn start(&self, top: TempDir) -> anyhow::Result<Server> {
        let peers = [("one", free_port()?)];
        self.member(top, "one", &peers, None).await
    }

    /// Starts the member `name` of a cluster. It is ready when the cluster has a leader.
    async fn member(
        &self,
        top: TempDir,
        name: &str,
        peers: &[(&str, u16)],
        tls: Option<(&Certificates, Tokens)>,
    ) -> anyhow::Result<Server> {
        let account = Account::for_server("etcd")?;
        let folder = account.folder(top.path(), "etcd")?;
        let address = |port: u16| format!("http://127.0.0.1:{port}");
        let own = peers.iter().find(|(peer, _)| *peer == name);
        let peer = address(own.context("a member is one of its cluster")?.1);
        let cluster: Vec<_> = peers
            .iter()
            .map(|(name, port)| format!("{name}={}", address(*port)))
            .collect();
        let (cluster, name) = (cluster.join(","), name.to_owned());
        let (server, log) = (self.server.clone(), folder.join("log"));
        let (letters, sign) = ("GET /health HTTP/1.0\r\n\r\n", "\"health\":\"true\"");
        let (scheme, mut others, probe) = match tls {
            None => ("http", Vec::new(), Probe::Says(letters, sign)),
            Some((certificates, tokens)) => {
                certificates.give(account, &folder)?;
                let health = free_port()?;
                let mut others = words("--cert-file server.pem --key-file server.key --client-cert-auth");
                others.extend(words("--trusted-ca-file ca.pem --listen-metrics-urls"));
                others.push(address(health));
                if tokens == Tokens::Jwt {
                    let keys = "jwt,pub-key=tokens.pem,priv-key=tokens.key,sign-method=RS256,ttl=10m";
                    others.extend(["--auth-token".to_owned(), keys.to_owned()]);
                }
                ("https", others, Probe::SaysOn(health, letters, sign))
            }
        };
        others.extend(words(
            "--auto-compaction-mode periodic --auto-compaction-retention 1h",
        ));
        let launch = Launch {
            name: format!("etcd {}", self.version),
            log,
            stop: Signal::TERM,
            server: Box::new(move |port| {
                let mut command = account.server(&server, &folder, "TERM");
                let client = format!("{scheme}://127.0.0.1:{port}");
                command
                    .args(["--name", &name])
                    .args([
                        "--listen-client-urls",
                        &client,
                        "--advertise-client-urls",
                        &client,
                    ])
                    .args([
                        "--listen-peer-urls",
                        &peer,
                        "--initial-advertise-peer-urls",
                        &peer,
                    ])
                    .args(["--initial-cluster", &cluster, "--logger", "zap"])
                    .args(&others);
                command.arg("--data-dir").arg(folder.join("data"));
                command
            }),
            probe,
        };
        Server::start(launch, Signal::TERM, top, |port| {
            format!("{scheme}://127.0.0.1:{port}")
        })
        .await
    }

    /// Starts three that form a cluster, and waits until one leads.
    pub(crate) async fn ensemble(&self) -> anyhow::Result<Ensemble> {
        let peers = [
            ("one", free_port()?),
            ("two", free_port()?),
            ("three", free_port()?),
        ];
        let member = async |name| self.member(temporary_folder()?, name, &peers, None).await;
        let (one, two, three) = tokio::try_join!(member("one"), member("two"), member("three"))?;
        Ok(Ensemble {
            url: [one.url(), two.url(), three.url()].join(","),
            servers: [one, two, three],
            leads: ("GET /metrics HTTP/1.0\r\n\r\n", "etcd_server_is_leader 1"),
        })
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Debian's packages of the compiler that building etcd's client needs, as far as it is not here.
pub fn missing_compiler() -> Vec<&'static str> {
    let compiler = programs::in_path("protoc");
    // The client's files import some that come with the compiler, which Debian has in a package of their own.
    let imports = |protoc: &Path| {
        let top = protoc.parent().and_then(Path::parent);
        top.is_some_and(|top| top.join("include/google/protobuf/descriptor.proto").is_file())
    };
    let imports = (!compiler.as_deref().is_some_and(imports)).then_some("libprotobuf-dev");
    let compiler = compiler.is_none().then_some("protobuf-compiler");
    compiler.into_iter().chain(imports).collect()
}

/// etcd prints `etcd Version: 3.4.23` in its first line.
fn version(text: &str) -> Option<Version> {
    Version::parse(text.lines().next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_first_line() {
        let text = "etcd Version: 3.4.23\nGit SHA: Not provided\nGo Version: go1.19.5";
        assert_eq!(version(text), Some(Version { major: 3, minor: 4 }));
    }
}
