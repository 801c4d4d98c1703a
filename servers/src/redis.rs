//! A throw-away Redis.

use std::path::PathBuf;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::account::Account;
use crate::launch::{Launch, Probe};
use crate::programs::{self, Version};
use crate::{Purpose, Server};

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
        let account = Account::for_server("redis")?;
        let folder = account.folder(top.path(), "redis")?;
        let settings = folder.join("settings");
        // In a file, because the arguments of a process are for everyone to read.
        let written = format!("requirepass {password}\n{}", persistence(purpose));
        account.write(&settings, &written)?;
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
                command.arg("--dir").arg(&folder);
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

/// What it does for a crash. Its default are snapshots now and then.
fn persistence(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Tests => "save \"\"\n",
        Purpose::Benches => "",
        // The torture uses its connections up.
        Purpose::Torture => "appendonly yes\nappendfsync always\nmaxclients 100\n",
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
