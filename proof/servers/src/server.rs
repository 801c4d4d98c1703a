//! One running server.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::disk::Disk;
use crate::installed::Programs;
use crate::launch::Launch;
use crate::process::Process;
use crate::{Kind, Purpose, random_password, temporary_folder};

/// A running server with files of its own. It is stopped when this is dropped, and its files go.
#[derive(Debug)]
pub struct Server {
    // Dropped in this order: the folder goes when nobody writes to it any more.
    process: Option<Process>,
    disk: Option<Disk>,
    _top: TempDir,
    launch: Launch,
    /// The signal at which it stops without waiting for anybody.
    at_once: Signal,
    port: u16,
    url: String,
    variables: Vec<(&'static str, PathBuf)>,
    /// The rest of a cluster.
    _others: Vec<Server>,
}

impl Server {
    /// A fresh server, for somebody who may kill it.
    ///
    /// # Errors
    /// Its programs are not installed, or it does not start.
    pub async fn fresh(kind: Kind, purpose: Purpose) -> anyhow::Result<Self> {
        let programs = Programs::find(&[kind]);
        let started = programs.start(kind, purpose, &random_password()?).await?;
        started.with_context(|| format!("the programs of {kind:?} are not installed"))
    }

    /// The same, with its files on a disk that can fail.
    ///
    /// # Errors
    /// The same, or there can be no such disk here.
    pub async fn on_disk(kind: Kind, purpose: Purpose) -> anyhow::Result<Self> {
        let top = temporary_folder()?;
        let disk = Disk::make(top.path()).await?;
        let (programs, password) = (Programs::find(&[kind]), random_password()?);
        let started = programs.start_in(top, kind, purpose, &password).await?;
        let server = started.with_context(|| format!("the programs of {kind:?} are not installed"))?;
        // The programs that make a server's first files leave that to the system.
        disk.sync().await?;
        Ok(Self {
            disk: Some(disk),
            ..server
        })
    }

    pub(crate) async fn start(
        launch: Launch,
        at_once: Signal,
        top: TempDir,
        url: impl FnOnce(u16) -> String,
    ) -> anyhow::Result<Self> {
        let (process, port) = launch.run().await?;
        Ok(Self {
            process: Some(process),
            disk: None,
            _top: top,
            launch,
            at_once,
            port,
            url: url(port),
            variables: Vec::new(),
            _others: Vec::new(),
        })
    }

    /// On a port that its settings name already.
    pub(crate) async fn start_on(
        launch: Launch,
        at_once: Signal,
        top: TempDir,
        port: u16,
        url: String,
    ) -> anyhow::Result<Self> {
        let process = launch.run_again(port, &[]).await?;
        Ok(Self {
            process: Some(process),
            disk: None,
            _top: top,
            launch,
            at_once,
            port,
            url,
            variables: Vec::new(),
            _others: Vec::new(),
        })
    }

    /// The disk of its files, if that can fail.
    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The first server of a cluster, in whose name it speaks.
    pub(crate) fn with(self, others: Vec<Self>, name: String, url: String) -> Self {
        Self {
            launch: Launch { name, ..self.launch },
            url,
            _others: others,
            ..self
        }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The number of its process, unless it was stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().and_then(Process::id)
    }

    /// Product and version.
    pub fn name(&self) -> &str {
        &self.launch.name
    }

    /// The file with the output of all its starts.
    pub fn log(&self) -> &Path {
        &self.launch.log
    }

    /// The URL of a superuser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of another user.
    pub fn url_of(&self, user: &str, password: &str) -> String {
        let ends = || Some((self.url.split_once("://")?.0, self.url.rsplit_once('@')?.1));
        let (scheme, place) = ends().unwrap_or_default();
        format!("{scheme}://{user}:{password}@{place}")
    }

    /// `kill -9`: nothing is written any more, nobody is told.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops it in its tracks, as a machine that hangs. It goes on after [`wake`](Self::wake).
    ///
    /// # Errors
    /// The system refuses.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.send(Signal::STOP)
    }

    /// Lets it go on after [`pause`](Self::pause).
    ///
    /// # Errors
    /// The system refuses.
    pub fn wake(&self) -> anyhow::Result<()> {
        self.send(Signal::CONT)
    }

    fn send(&self, signal: Signal) -> anyhow::Result<()> {
        self.process
            .as_ref()
            .map_or(Ok(()), |process| process.send_to_all(signal))
    }

    /// Tells it to stop without waiting for anybody: immediate mode on PostgreSQL, which leaves recovery to
    /// the next start; an ordinary end on MySQL, which has no such mode.
    pub fn stop_at_once(&mut self) {
        if let Some(process) = self.process.take() {
            process.stop_by(self.at_once);
        }
    }

    /// Starts it again, on the same port, and waits until it answers.
    ///
    /// # Errors
    /// It does not start.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        self.process = Some(self.launch.run_again(self.port, &self.variables).await?);
        Ok(())
    }

    /// Starts it again with more in its environment, as [`restart`](Self::restart) will from then on.
    ///
    /// # Errors
    /// It does not start.
    pub async fn restart_with(&mut self, variables: Vec<(&'static str, PathBuf)>) -> anyhow::Result<()> {
        self.stop_at_once();
        self.variables = variables;
        self.restart().await
    }

    /// Mounts its disk again, as after a power failure, and starts it.
    ///
    /// # Errors
    /// It does not start.
    pub async fn restart_with_disk(&mut self) -> anyhow::Result<()> {
        self.kill();
        if let Some(disk) = &self.disk {
            disk.mount_again().await?;
        }
        self.restart().await
    }

    /// Waits until it answers again, and starts it if it has ended.
    ///
    /// # Errors
    /// It does not start, or it goes on and does not answer.
    pub async fn recover(&mut self) -> anyhow::Result<()> {
        let goes_on = match self.process.take() {
            Some(process) => self.launch.wait_until_ready(process, self.port).await?,
            None => None,
        };
        self.process = Some(match goes_on {
            Some(process) => process,
            None => self.launch.run_again(self.port, &self.variables).await?,
        });
        Ok(())
    }

    pub(crate) async fn restart_if_killed(&mut self) -> anyhow::Result<()> {
        match self.process {
            Some(_) => Ok(()),
            None => self.restart().await,
        }
    }
}
