//! The user that a server runs as: PostgreSQL and MariaDB refuse to run as root.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use anyhow::Context as _;
use tokio::process::Command;

use crate::programs;

/// The account of a server and of the programs that prepare its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Account {
    /// The account that runs this program.
    Ours,
    /// Another account, which only root can switch to.
    Other { uid: u32, gid: u32 },
}

impl Account {
    /// Our own account, or when that is root's, `preferred`, which the packages make, or `nobody`.
    pub(crate) fn for_server(preferred: &str) -> anyhow::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Ours);
        }
        let accounts = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
        let (uid, gid) = [preferred, "nobody"]
            .into_iter()
            .find_map(|name| ids(&accounts, name))
            .with_context(|| format!("there is no account `{preferred}` nor `nobody` to run a server"))?;
        Ok(Self::Other { uid, gid })
    }

    /// A folder inside `parent` that this account alone can enter.
    pub(crate) fn folder(self, parent: &Path, name: &str) -> anyhow::Result<std::path::PathBuf> {
        let folder = parent.join(name);
        fs::create_dir(&folder)
            .and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)))
            .and_then(|()| self.give(&folder))
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        Ok(folder)
    }

    /// Writes a file into the account's folder.
    pub(crate) fn write(self, path: &Path, text: &str) -> anyhow::Result<()> {
        fs::write(path, text)
            .and_then(|()| self.give(path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn give(self, path: &Path) -> std::io::Result<()> {
        match self {
            Self::Ours => Ok(()),
            Self::Other { uid, gid } => chown(path, Some(uid), Some(gid)),
        }
    }

    /// A command of this account, in `folder`, in English, and untouched by the caller's settings such
    /// as `PGOPTIONS`.
    pub(crate) fn command(self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.kill_on_drop(true);
        self.prepare(&mut command, folder);
        command
    }

    /// Like [`command`](Self::command), for a server: it also gets `signal` when we are killed and
    /// cannot stop it ourselves. Linux only; elsewhere the server then stays.
    pub(crate) fn server(self, program: &Path, folder: &Path, signal: &str) -> Command {
        let mut command = match programs::in_path("setpriv").filter(|_| cfg!(target_os = "linux")) {
            None => Command::new(program),
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", signal, "--"]).arg(program);
                command
            }
        };
        self.prepare(&mut command, folder);
        command
    }

    fn prepare(self, command: &mut Command, folder: &Path) {
        command
            .current_dir(folder)
            .env_clear()
            .env("LC_ALL", "C")
            .env("HOME", folder);
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        if let Self::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
    }
}

/// User and group id of `name` in the text of /etc/passwd.
fn ids(accounts: &str, name: &str) -> Option<(u32, u32)> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let mut ids = fields
            .next()
            .filter(|found| *found == name)
            .map(|_| fields.skip(1))?;
        Some((ids.next()?.parse().ok()?, ids.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::ids;

    #[test]
    fn ids_are_those_of_the_named_account() {
        let accounts = "root:x:0:0:root:/root:/bin/bash\npostgresx:x:7:8::/:/bin/sh\n\
                        postgres:x:105:113:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash\n";
        assert_eq!(ids(accounts, "postgres"), Some((105, 113)));
        assert_eq!(ids(accounts, "mysql"), None);
    }
}
