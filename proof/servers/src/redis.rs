//! A throw-away Redis.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::sleep;

use crate::account::Account;
use crate::launch::{Launch, Probe, prepare};
use crate::programs::{self, Version};
use crate::{Purpose, Server};

/// How often servers that get to know each other are asked whether they do, and how many times.
const ASK_EVERY: Duration = Duration::from_millis(100);
const ASKED: u32 = 300;

/// The server's and the client's program.
#[derive(Debug)]
pub(crate) struct Programs {
    server: PathBuf,
    client: PathBuf,
    version: Version,
}

impl Programs {
    pub(crate) fn find() -> Option<Self> {
        let server = programs::in_path("redis-server")?;
        let version = version(&programs::version_text(&server)?)?;
        let client = programs::in_path("redis-cli")?;
        Some(Self {
            server,
            client,
            version,
        })
    }

    /// Starts a server with its files in `top`.
    pub(crate) async fn start(
        &self,
        top: TempDir,
        password: &str,
        purpose: Purpose,
    ) -> anyhow::Result<Server> {
        let written = format!("requirepass {password}\n{}", persistence(purpose));
        self.start_with(top, password, &written, &[]).await
    }

    /// Starts a server with settings of its own, and with words behind those that every server gets.
    pub(crate) async fn start_with(
        &self,
        top: TempDir,
        password: &str,
        written: &str,
        words: &'static [&'static str],
    ) -> anyhow::Result<Server> {
        let account = Account::for_server("redis")?;
        let folder = account.folder(top.path(), "redis")?;
        let settings = folder.join("settings");
        // In a file, because the arguments of a process are for everyone to read.
        account.write(&settings, written)?;
        let server = self.server.clone();
        let (client, client_folder, secret) = (self.client.clone(), folder.clone(), password.to_owned());
        let launch = Launch {
            name: format!("Redis {}", self.version),
            log: folder.join("log"),
            stop: Signal::TERM,
            server: Box::new(move |port| {
                let mut command = account.server(&server, &folder, "TERM");
                command
                    .arg(&settings)
                    .args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
                command.arg("--dir").arg(&folder).args(words);
                command
            }),
            probe: Probe::Client(Box::new(move |port| {
                let mut command = account.command(&client, &client_folder);
                // With -e an error, such as a wrong password, is a failure of the program.
                command.args(["-e", "-h", "127.0.0.1", "-p", &port.to_string(), "PING"]);
                command.env("REDISCLI_AUTH", &secret);
                command
            })),
        };
        Server::start(launch, Signal::TERM, top, |port| {
            format!("redis://:{password}@127.0.0.1:{port}")
        })
        .await
    }
}

/// The settings that say what a crash leaves. The server's default is a snapshot now and then.
pub(crate) fn persistence(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Tests => "save \"\"\n",
        Purpose::Benches => "",
        // The torture uses its connections up.
        Purpose::Torture => "appendonly yes\nappendfsync always\nmaxclients 100\n",
        Purpose::Forgetful => "appendonly yes\nappendfsync everysec\nmaxclients 100\n",
    }
}

impl Programs {
    /// Runs the client to its end.
    pub(crate) async fn client(&self, password: &str, words: &[String]) -> anyhow::Result<()> {
        prepare(self.command(password, words)).await
    }

    /// Asks the server at an address until it answers with this text.
    pub(crate) async fn until(
        &self,
        password: &str,
        address: &str,
        asked: &[&str],
        wanted: &str,
    ) -> anyhow::Result<()> {
        let (host, port) = address.split_once(':').unwrap_or((address, "6379"));
        let mut words: Vec<_> = ["-h", host, "-p", port].map(str::to_owned).to_vec();
        words.extend(asked.iter().map(|word| (*word).to_owned()));
        let mut said = String::new();
        for _ in 0..ASKED {
            let output = self.command(password, &words).output().await?;
            said = String::from_utf8_lossy(&output.stdout).into_owned();
            if said.contains(wanted) {
                return Ok(());
            }
            sleep(ASK_EVERY).await;
        }
        anyhow::bail!("{address} does not come to say {wanted:?}; it says {said:?}")
    }

    fn command(&self, password: &str, words: &[String]) -> Command {
        let mut command = Command::new(&self.client);
        command
            .args(words)
            .env("REDISCLI_AUTH", password)
            .kill_on_drop(true);
        command
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }
}

/// Redis prints `Redis server v=7.0.15 sha=…`.
fn version(text: &str) -> Option<Version> {
    let word = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    Version::parse(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_follows_its_sign() {
        let text = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d";
        assert_eq!(version(text), Some(Version { major: 7, minor: 0 }));
    }
}
