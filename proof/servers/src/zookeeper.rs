//! A throw-away ZooKeeper: one server, or an ensemble of three.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::account::Account;
use crate::launch::{Launch, Probe, free_port};
use crate::programs::{self, Version};
use crate::{Ensemble, Purpose, Server, temporary_folder};

/// Where Debian puts the program. It names the libraries that it needs.
const LIBRARIES: &str = "/usr/share/java";

/// Without it nothing would be logged.
const LOGGER: &str = "slf4j-simple.jar";

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
        self.start_member(top, purpose, free_port()?, None).await
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
            self.start_member(top, purpose, ports[number], Some(Member { number, peers }))
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
    ) -> anyhow::Result<Server> {
        let account = Account::for_server("zookeeper")?;
        let folder = account.folder(top.path(), "zookeeper")?;
        let data = account.folder(&folder, "data")?;
        let settings = folder.join("settings");
        let mut written = settings_of(&data, port);
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
                command.args(["-cp", &format!("{LIBRARIES}/zookeeper.jar:{LIBRARIES}/{LOGGER}")]);
                command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain");
                command.arg(&settings);
                command
            }),
            probe: Probe::Says("srvr", "Mode: "),
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
fn settings_of(data: &Path, port: u16) -> String {
    format!(
        "dataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\ntickTime=500\ninitLimit=20\n\
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
