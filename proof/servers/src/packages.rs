//! Getting packages: installs them where somebody asks for it, else names the command.

use std::env;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
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

/// Not every machine can have these: ZooKeeper needs a Java, and Galera is MariaDB's. So they may be left out
/// where the package manager does not offer them, but not in CI.
const MAY_BE_LEFT_OUT: [&str; 6] = [
    "zookeeper",
    "etcd-server",
    "protobuf-compiler",
    "libprotobuf-dev",
    "libfaketime",
    "galera-4",
];

/// apt-get does not wait for the lock of its lists, and a fresh machine may be updating itself.
const UPDATES: u32 = 3;

/// The facts that decide who installs what.
#[derive(Debug)]
struct Machine {
    /// Somebody asked for it, and it runs as root.
    may_install: bool,
    ci: bool,
    manager: Option<Manager>,
    /// Where its programs are.
    folders: Vec<PathBuf>,
    policy: PathBuf,
    /// Between two [`UPDATES`].
    pause: Duration,
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

/// Installs what is `missing` of Debian's packages, all of it at once, if that was `asked` for. Returns what is
/// left out, because this machine cannot have it.
///
/// Two runs of apt-get refuse each other, so a task calls this once, before anything else.
///
/// # Errors
/// A package may not be installed: the error names the command that does, and what can be done `otherwise`.
/// Or one that is offered cannot be installed.
pub async fn install(
    missing: impl Fn() -> Vec<&'static str>,
    otherwise: &str,
    asked: bool,
) -> anyhow::Result<Vec<&'static str>> {
    let mut wanted = missing();
    wanted.sort_unstable();
    wanted.dedup();
    if wanted.is_empty() {
        return Ok(wanted);
    }
    let left_out = Machine::look(Path::new("/etc/debian_version"), asked)
        .install(&wanted, otherwise)
        .await?;
    let mut still = missing();
    still.retain(|package| !left_out.contains(package));
    ensure!(
        still.is_empty(),
        "still not found after the installation: {}",
        still.join(", ")
    );
    Ok(left_out)
}

/// Whether the package may be left out where it is not offered.
pub(crate) fn may_be_left_out(package: &str) -> bool {
    MAY_BE_LEFT_OUT.contains(&package) && !is_ci()
}

fn is_ci() -> bool {
    env::var_os("CI").is_some()
}

impl Machine {
    fn look(debian: &Path, asked: bool) -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        Self {
            may_install: asked && rustix::process::geteuid().is_root(),
            ..Self::with(debian, programs::folders(&path))
        }
    }

    fn with(debian: &Path, folders: Vec<PathBuf>) -> Self {
        let present = |manager: &Manager| {
            programs::in_folders(manager.program(), folders.clone()).is_some()
                && (*manager != Manager::Apt || debian.exists())
        };
        Self {
            may_install: false,
            ci: is_ci(),
            manager: Manager::ALL.into_iter().find(present),
            folders,
            policy: POLICY.into(),
            pause: Duration::from_secs(10),
        }
    }

    async fn install<'p>(&self, missing: &[&'p str], otherwise: &str) -> anyhow::Result<Vec<&'p str>> {
        eprintln!("missing: {}", missing.join(", "));
        let ours = self.may_install && self.manager == Some(Manager::Apt);
        if ours {
            self.update().await?;
        }
        let (left_out, wanted): (Vec<&str>, Vec<&str>) = missing
            .iter()
            .partition(|package| MAY_BE_LEFT_OUT.contains(package) && !self.ci && !self.offers(package));
        if !left_out.is_empty() {
            let why = match self.manager {
                Some(Manager::Apt) => "apt does not offer it".to_owned(),
                _ => self.remedy(&left_out),
            };
            eprintln!("LEFT OUT: all that needs {}; {why}", left_out.join(", "));
        }
        if wanted.is_empty() {
            return Ok(left_out);
        }
        if !ours {
            bail!(
                "missing: {}; {}{otherwise}",
                wanted.join(", "),
                self.remedy(&wanted)
            );
        }
        let policy = self.policy.clone();
        let _policy = tokio::task::spawn_blocking(move || Policy::forbid_services(&policy)).await??;
        self.apt(&[&["install", "-y", "--no-install-recommends"], &*wanted].concat())
            .await?;
        Ok(left_out)
    }

    /// The command that installs, for people.
    fn remedy(&self, missing: &[&str]) -> String {
        let debian = missing.join(" ");
        match self.manager {
            Some(Manager::Apt) => format!(
                "run: sudo apt-get update && sudo apt-get install -y --no-install-recommends {debian}\n\
                 or add `--install`, as root"
            ),
            Some(Manager::Dnf) => {
                let fedora = debian.replace("postgresql", "postgresql-server");
                format!("run: sudo dnf install -y {fedora}")
            }
            Some(Manager::Brew) => format!("run: brew install {}", debian.replace("-server", "")),
            None => format!("install what Debian calls {debian}"),
        }
    }

    /// Whether the package can be had here. Only apt is asked: elsewhere the names differ.
    fn offers(&self, package: &str) -> bool {
        let ask = || {
            let mut ask = std::process::Command::new(self.program("apt-cache"));
            ask.args(["show", package]).output()
        };
        self.manager == Some(Manager::Apt) && ask().is_ok_and(|answer| answer.status.success())
    }

    async fn update(&self) -> anyhow::Result<()> {
        // Without it, lists that could not be fetched are a warning, and offer nothing.
        let update = ["-o", "APT::Update::Error-Mode=any", "update"];
        for _ in 1..UPDATES {
            match self.apt(&update).await {
                Ok(()) => return Ok(()),
                Err(error) => eprintln!("{error:#}; once more in {:?}", self.pause),
            }
            tokio::time::sleep(self.pause).await;
        }
        self.apt(&update).await
    }

    async fn apt(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(self.program("apt-get"));
        command
            // A fresh machine may be installing; and without a terminal of its own dpkg cannot be stopped by
            // the terminal for being in the background.
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

    fn program(&self, name: &str) -> PathBuf {
        programs::in_folders(name, self.folders.clone()).unwrap_or_else(|| name.into())
    }
}

/// The file says that no package may start its services.
const NO_SERVICES: &str = "#!/bin/sh\nexit 101\n";

/// While it lives, packages do not start their services: the distribution's own servers would take the
/// default ports and stay. A policy that exists already is the machine owner's and is left alone.
#[derive(Debug)]
struct Policy {
    ours: Option<PathBuf>,
    /// One installation at a time: the first to end would remove the policy of the others.
    _turn: fs::File,
}

impl Policy {
    /// Waits until no other process of ours installs.
    fn forbid_services(path: &Path) -> anyhow::Result<Self> {
        let folder = path.parent().context("a policy is in a folder")?;
        let turn = fs::File::open(folder).and_then(|folder| folder.lock().map(|()| folder));
        let mut policy = Self {
            ours: None,
            _turn: turn.with_context(|| format!("cannot lock {}", folder.display()))?,
        };
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(path);
        match file {
            Ok(mut file) => {
                policy.ours = Some(path.to_owned());
                file.write_all(NO_SERVICES.as_bytes())
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                // Left behind by a process of ours that was killed.
                let left = fs::read_to_string(path).is_ok_and(|text| text == NO_SERVICES);
                policy.ours = left.then(|| path.to_owned());
            }
            Err(error) => return Err(error).with_context(|| format!("cannot write {}", path.display())),
        }
        Ok(policy)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if let Some(path) = &self.ours
            && let Err(error) = fs::remove_file(path)
        {
            eprintln!("cannot remove {}, please do: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests;
