//! A throw-away ZooKeeper: one server, with TLS if that is wanted, or an ensemble of three.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::account::Account;
use crate::certificates::Certificates;
use crate::launch::{Launch, Probe, free_port};
use crate::programs::{self, Version};
use crate::slow_disk::SlowDisk;
use crate::{Ensemble, Purpose, Server, temporary_folder};

/// Where Debian puts the program. It names the libraries that it needs.
const LIBRARIES: &str = "/usr/share/java";

/// Without it nothing would be logged.
const LOGGER: &str = "slf4j-simple.jar";

/// What speaks TLS, as far as the program does not name it.
const NETTY: [&str; 3] = ["codec", "resolver", "transport-native-unix-common"];

/// Java, and the version of the server that it runs.
#[derive(Debug)]
pub(crate) struct Programs {
    java: PathBuf,
    version: Version,
}

/// The place of a server in an ensemble, and its ports for the others.
struct Member {
    number: usize,
    peers: Vec<(u16, u16)>,
}

/// Starts a server that speaks TLS. A client may have a certificate, of the same authority.
///
/// # Errors
/// It is not installed, or does not start.
pub async fn start_with_tls(certificates: &Certificates) -> anyhow::Result<Server> {
    let programs = Programs::find().context("ZooKeeper is not installed")?;
    let (top, port) = (temporary_folder()?, free_port()?);
    programs
        .start_member(top, Purpose::Tests, port, None, Some(certificates))
        .await
}

/// Starts a server that takes no session but those of users of SASL (DIGEST-MD5): each a name and a password.
///
/// # Errors
/// It is not installed, or does not start.
pub async fn start_with_sasl(users: &[(&str, &str)]) -> anyhow::Result<Server> {
    let programs = Programs::find().context("ZooKeeper is not installed")?;
    let (top, port) = (temporary_folder()?, free_port()?);
    let account = Account::for_server("zookeeper")?;
    let folder = account.folder(top.path(), "zookeeper")?;
    let users = users
        .iter()
        .map(|(name, password)| format!(" user_{name}=\"{password}\""));
    let users = users.collect::<Vec<_>>().concat();
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let jaas = format!("Server {{ {module} required{users}; }};\n");
    account.write(&folder.join("jaas"), &jaas)?;
    programs.start_in(top, Purpose::Tests, port, None, None).await
}

/// Starts a server whose commits take so long from [`SlowDisk::slow_down`] on.
///
/// # Errors
/// It is not installed, there is no C compiler, or it does not start.
pub async fn start_on_slow_disk(commit: Duration) -> anyhow::Result<(Server, SlowDisk)> {
    let programs = Programs::find().context("ZooKeeper is not installed")?;
    let (top, port) = (temporary_folder()?, free_port()?);
    let account = Account::for_server("zookeeper")?;
    let disk = SlowDisk::make(account, &account.folder(top.path(), "zookeeper")?, commit).await?;
    // For benches commits wait for the disk.
    let server = programs.start_in(top, Purpose::Benches, port, None, None).await?;
    Ok((server, disk))
}

impl Programs {
    pub(crate) fn find() -> Option<Self> {
        let complete = ["zookeeper.jar", LOGGER].map(|name| Path::new(LIBRARIES).join(name).is_file());
        let files = fs::read_dir(LIBRARIES).ok()?.flatten();
        let version = files
            .filter_map(|file| version(file.file_name().to_str()?))
            .max()?;
        let java = programs::in_path("java").filter(|_| complete == [true; 2])?;
        Some(Self { java, version })
    }

    /// Starts a server with its files in `top`.
    pub(crate) async fn start(&self, top: TempDir, purpose: Purpose) -> anyhow::Result<Server> {
        self.start_member(top, purpose, free_port()?, None, None).await
    }

    /// Starts three that form an ensemble, and waits until one leads.
    pub(crate) async fn ensemble(&self, purpose: Purpose) -> anyhow::Result<Ensemble> {
        let mut ports = Vec::new();
        while ports.len() < 9 {
            let port = free_port()?;
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
        let peers: Vec<_> = (0..3).map(|place| (ports[3 + place], ports[6 + place])).collect();
        let start = async |number: usize| {
            let peers = peers.clone();
            let top = temporary_folder()?;
            self.start_member(top, purpose, ports[number], Some(Member { number, peers }), None)
                .await
        };
        // Each is ready when there is a leader, so none can be waited for alone.
        let (one, two, three) = tokio::try_join!(start(0), start(1), start(2))?;
        let hosts: Vec<_> = ports[..3]
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        Ok(Ensemble {
            servers: [one, two, three],
            url: format!("zookeeper://{}", hosts.join(",")),
            leads: ("srvr", "Mode: leader"),
        })
    }

    async fn start_member(
        &self,
        top: TempDir,
        purpose: Purpose,
        port: u16,
        member: Option<Member>,
        tls: Option<&Certificates>,
    ) -> anyhow::Result<Server> {
        Account::for_server("zookeeper")?.folder(top.path(), "zookeeper")?;
        self.start_in(top, purpose, port, member, tls).await
    }

    /// As [`start_member`](Self::start_member), in a folder that is there.
    async fn start_in(
        &self,
        top: TempDir,
        purpose: Purpose,
        port: u16,
        member: Option<Member>,
        tls: Option<&Certificates>,
    ) -> anyhow::Result<Server> {
        let account = Account::for_server("zookeeper")?;
        let folder = top.path().join("zookeeper");
        let data = account.folder(&folder, "data")?;
        let settings = folder.join("settings");
        let mut probe = Probe::Says("srvr", "Mode: ");
        let mut written = match tls {
            None => settings_of(&data, &format!("clientPort={port}")),
            Some(certificates) => {
                certificates.give(account, &folder)?;
                let (plain, folder) = (free_port()?, folder.display());
                probe = Probe::SaysOn(plain, "srvr", "Mode: ");
                let ports = format!(
                    "clientPort={plain}\nsecureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n\
                     serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                     ssl.keyStore.location={folder}/server.both.pem\nssl.trustStore.location={folder}/ca.pem\nssl.clientAuth=want"
                );
                settings_of(&data, &ports)
            }
        };
        if let Some(Member { number, peers }) = member {
            account.write(&data.join("myid"), &number.to_string())?;
            let servers = peers.iter().enumerate();
            let servers = servers
                .map(|(place, (quorum, election))| format!("server.{place}=127.0.0.1:{quorum}:{election}\n"));
            written.extend(servers);
        }
        account.write(&settings, &written)?;
        let java = self.java.clone();
        let launch = Launch {
            name: format!("ZooKeeper {}", self.version),
            log: folder.join("log"),
            stop: Signal::TERM,
            server: Box::new(move |_| {
                let mut command = account.server(&java, &folder, "TERM");
                command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
                command.args([
                    "-Djava.net.preferIPv4Stack=true",
                    "-Dzookeeper.admin.enableServer=false",
                ]);
                command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
                if purpose == Purpose::Tests {
                    command.arg("-Dzookeeper.forceSync=no");
                }
                if folder.join("jaas").is_file() {
                    command.arg(format!(
                        "-Djava.security.auth.login.config={}/jaas",
                        folder.display()
                    ));
                    command.args([
                        "-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
                        "-Dzookeeper.sessionRequireClientSASLAuth=true",
                    ]);
                }
                if folder.join("slow.so").is_file() {
                    SlowDisk::under(&folder, &mut command);
                }
                let netty = NETTY
                    .map(|part| format!(":{LIBRARIES}/netty-{part}.jar"))
                    .concat();
                command.args([
                    "-cp",
                    &format!("{LIBRARIES}/zookeeper.jar:{LIBRARIES}/{LOGGER}{netty}"),
                ]);
                command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain");
                command.arg(&settings);
                command
            }),
            probe,
        };
        Server::start_on(
            launch,
            Signal::TERM,
            top,
            port,
            format!("zookeeper://127.0.0.1:{port}"),
        )
        .await
    }
}

/// A leader that is silent for two seconds is replaced.
fn settings_of(data: &Path, ports: &str) -> String {
    format!(
        "dataDir={}\n{ports}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\ntickTime=500\ninitLimit=20\n\
         syncLimit=4\nminSessionTimeout=1000\nmaxSessionTimeout=40000\n",
        data.display()
    )
}

/// Debian's link to the library has the version in its name: `zookeeper-3.8.0.jar`.
fn version(name: &str) -> Option<Version> {
    let version = name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?;
    version
        .starts_with(|first: char| first.is_ascii_digit())
        .then(|| Version::parse(version))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_name_of_the_library() {
        assert_eq!(
            version("zookeeper-3.8.0.jar"),
            Some(Version { major: 3, minor: 8 })
        );
        for other in ["zookeeper.jar", "zookeeper-jute-3.8.0.jar", "zookeeper-it.jar"] {
            assert_eq!(version(other), None, "{other}");
        }
    }
}
