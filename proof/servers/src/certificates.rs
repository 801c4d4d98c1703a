//! Certificates of an authority of the test's own, for servers and clients that speak TLS on the loopback.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use tempfile::TempDir;
use tokio::process::Command;

use crate::account::Account;
use crate::launch::prepare;
use crate::{programs, temporary_folder};

/// The name of the program that makes them, and of its package.
pub(crate) const NAME: &str = "openssl";

/// The user whom the client's certificate names.
pub const USER: &str = "locks";

/// An authority, and what it has signed: a server on the loopback, and a client. All as PEM.
#[derive(Debug)]
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// Whether they can be made here.
    pub fn can_be_made() -> bool {
        programs::in_path(NAME).is_some()
    }

    /// Makes all of them anew.
    ///
    /// # Errors
    /// `openssl` is not installed, or fails.
    pub async fn make() -> anyhow::Result<Self> {
        let folder = temporary_folder()?;
        let path = folder.path();
        certificate(path, "ca", "dblock-tests", "ec", &[]).await?;
        let signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext"];
        let signed = [&signed[..], &["basicConstraints=critical,CA:FALSE"]].concat();
        let place = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"];
        certificate(path, "server", "server", "ec", &[&signed[..], &place].concat()).await?;
        certificate(path, "client", USER, "ec", &signed).await?;
        // For tokens, which etcd signs. It reads keys of this kind only, whatever openssl's version.
        certificate(path, "tokens", "tokens", "rsa:2048", &[]).await?;
        Ok(Self { folder })
    }

    /// The certificate of the authority.
    ///
    /// # Panics
    /// When it has been deleted.
    pub fn authority(&self) -> String {
        self.read("ca.pem")
    }

    /// The certificate of the client, and its key.
    ///
    /// # Panics
    /// When they have been deleted.
    pub fn client(&self) -> (String, String) {
        (self.read("client.pem"), self.read("client.key"))
    }

    /// Copies the files that a server needs into its folder.
    pub(crate) fn give(&self, account: Account, folder: &Path) -> anyhow::Result<()> {
        let names = ["ca.pem", "server.pem", "server.key", "tokens.pem", "tokens.key"];
        let mut files = names.into_iter();
        files.try_for_each(|name| account.write(&folder.join(name), &self.read(name)))?;
        // As Java wants them.
        let both = self.read("server.key") + &self.read("server.pem");
        account.write(&folder.join("server.both.pem"), &both)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).expect("it was made with the others")
    }
}

async fn certificate(
    folder: &Path,
    file: &str,
    name: &str,
    key: &str,
    others: &[&str],
) -> anyhow::Result<()> {
    let openssl = programs::in_path(NAME).context("openssl is not installed")?;
    let mut command = Command::new(openssl);
    command
        .current_dir(folder)
        .args(["req", "-x509", "-nodes", "-days", "7"]);
    command.args(["-newkey", key]);
    if key == "ec" {
        command.args(["-pkeyopt", "ec_paramgen_curve:P-256"]);
    }
    command.args(["-subj", &format!("/CN={name}")]).args(others);
    command.args(["-out", &format!("{file}.pem"), "-keyout", &format!("{file}.key")]);
    prepare(command).await
}
