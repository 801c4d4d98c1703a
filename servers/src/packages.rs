//! Getting packages: installs them where that is ours to do, else names the command.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use tokio::process::Command;

use crate::process::{Process, Stop, Target, shown};
use crate::programs;

/// Debian asks this program whether a package may start its service. 101 means no.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// apt-get finishes the package it is at when it is interrupted; killing it sooner would leave a
/// half-installed package behind.
const APT_STOP: Stop = Stop {
    signal: Signal::INT,
    to: Target::Process,
    grace: Duration::from_mins(2),
};

/// The facts that decide who installs.
#[derive(Debug, Clone, Copy)]
struct Machine {
    root: bool,
    manager: Option<Manager>,
}

/// The package managers whose command we can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Apt,
    Dnf,
    Brew,
}

impl Manager {
    const ALL: [Self; 3] = [Self::Apt, Self::Dnf, Self::Brew];

    fn program(self) -> &'static str {
        match self {
            Self::Apt => "apt-get",
            Self::Dnf => "dnf",
            Self::Brew => "brew",
        }
    }
}

/// The one who installs.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// We do, with apt-get.
    Install,
    /// The user does, as this text says.
    Tell(String),
}

impl Machine {
    fn look(debian: &Path, folders: &[PathBuf]) -> Self {
        let present = |manager: &Manager| {
            programs::in_folders(manager.program(), folders.to_vec()).is_some()
                && (*manager != Manager::Apt || debian.exists())
        };
        Self {
            root: rustix::process::geteuid().is_root(),
            manager: Manager::ALL.into_iter().find(present),
        }
    }

    fn plan(self, missing: &[&str]) -> Plan {
        let debian = missing.join(" ");
        Plan::Tell(match self.manager {
            Some(Manager::Apt) if self.root => return Plan::Install,
            Some(Manager::Apt) => format!(
                "run: sudo apt-get update && sudo apt-get install -y --no-install-recommends {debian}"
            ),
            Some(Manager::Dnf) => {
                let fedora = debian.replace("postgresql", "postgresql-server");
                format!("run: sudo dnf install -y {fedora}")
            }
            Some(Manager::Brew) => format!("run: brew install {}", debian.replace("-server", "")),
            None => format!("install what Debian calls {debian}"),
        })
    }
}

/// Installs the Debian packages `missing`, or fails with the command that does and with what can be done
/// `otherwise`.
///
/// # Errors
/// When the packages are not ours to install, and when apt-get fails.
pub async fn install(missing: &[&str], otherwise: &str) -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let machine = Machine::look(Path::new("/etc/debian_version"), &programs::folders(&path));
    let text = missing.join(", ");
    if let Plan::Tell(remedy) = machine.plan(missing) {
        bail!("missing: {text}; {remedy}{otherwise}");
    }
    eprintln!("missing: {text}; installing");
    let _policy = Policy::forbid_services(Path::new(POLICY))?;
    apt(&["update"]).await?;
    apt(&[&["install", "-y", "--no-install-recommends"], missing].concat()).await
}

async fn apt(arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("apt-get");
    command
        // A fresh machine may be updating itself; and without a terminal of its own dpkg cannot be
        // stopped by the terminal for being in the background.
        .args(["-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Progress is for people; our own stdout is for the servers' URLs.
        .stdout(std::io::stderr());
    eprintln!("$ {}", shown(&command));
    let status = Process::start(&mut command, APT_STOP)?.wait().await?;
    if !status.success() {
        bail!("`{}` failed with {status}", shown(&command));
    }
    Ok(())
}

/// While it lives, packages do not start their services: the distribution's own servers would take the
/// default ports and stay. A policy that exists already is the machine owner's and is left alone.
#[derive(Debug)]
struct Policy(Option<PathBuf>);

impl Policy {
    fn forbid_services(path: &Path) -> anyhow::Result<Self> {
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(path);
        match file {
            Ok(mut file) => {
                let policy = Self(Some(path.to_owned()));
                file.write_all(b"#!/bin/sh\nexit 101\n")
                    .with_context(|| format!("cannot write {}", path.display()))?;
                Ok(policy)
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(Self(None)),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
        }
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(error) = fs::remove_file(path)
        {
            eprintln!("cannot remove {}, please do: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const BOTH: [&str; 2] = ["postgresql", "mariadb-server"];

    fn told(root: bool, manager: Option<Manager>) -> String {
        match (Machine { root, manager }).plan(&BOTH) {
            Plan::Tell(text) => text,
            Plan::Install => panic!("installs"),
        }
    }

    #[test]
    fn only_root_on_a_debian_machine_installs() {
        assert_eq!(
            Machine {
                root: true,
                manager: Some(Manager::Apt)
            }
            .plan(&BOTH),
            Plan::Install
        );
        assert_eq!(
            told(false, Some(Manager::Apt)),
            "run: sudo apt-get update && \
             sudo apt-get install -y --no-install-recommends postgresql mariadb-server"
        );
        for root in [true, false] {
            assert_eq!(
                told(root, Some(Manager::Dnf)),
                "run: sudo dnf install -y postgresql-server mariadb-server"
            );
            assert_eq!(
                told(root, Some(Manager::Brew)),
                "run: brew install postgresql mariadb"
            );
            assert_eq!(
                told(root, None),
                "install what Debian calls postgresql mariadb-server"
            );
        }
    }

    #[test]
    fn apt_counts_on_debian_only() {
        let folder = tempfile::tempdir().unwrap();
        let debian = folder.path().join("debian_version");
        let look = || Machine::look(&debian, &[folder.path().to_owned()]).manager;
        assert_eq!(look(), None);
        let apt = folder.path().join("apt-get");
        fs::write(&apt, "").unwrap();
        fs::set_permissions(&apt, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(look(), None);
        fs::write(&debian, "12").unwrap();
        assert_eq!(look(), Some(Manager::Apt));
    }

    #[test]
    fn a_policy_of_ours_is_removed_and_another_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy-rc.d");

        let policy = Policy::forbid_services(&path).unwrap();
        let answer = std::process::Command::new("sh").arg(&path).status().unwrap();
        assert_eq!(answer.code(), Some(101));
        drop(policy);
        assert!(!path.exists());

        fs::write(&path, "theirs").unwrap();
        drop(Policy::forbid_services(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    }
}
