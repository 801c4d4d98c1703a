//! Clocks that do not run as the host's does, by libfaketime: those of the processes, and the server's.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use fastrand::Rng;
use tempfile::TempDir;

/// How far apart the clocks of the processes and the server's are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Apart {
    /// By less than the margin of a lease: a hundredth each, and jumps of 20 ms.
    Within,
    /// By more: from half to twice the true rate, and jumps of up to 3 seconds.
    Beyond,
}

impl Apart {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::Beyond => "beyond",
        }
    }

    /// How fast a clock runs, in thousandths of the true rate.
    pub(crate) fn rate(self, rng: &mut Rng) -> u32 {
        match (self, rng.bool()) {
            (Self::Within, _) => rng.u32(990..=1_010),
            (Self::Beyond, false) => rng.u32(500..=1_000),
            (Self::Beyond, true) => rng.u32(1_000..=2_000),
        }
    }

    /// To how many milliseconds from the time by its rate the server's clock jumps.
    pub(crate) fn jump(self, rng: &mut Rng) -> i32 {
        match self {
            Self::Within => rng.i32(0..=20),
            Self::Beyond => rng.i32(-1_500..=1_500),
        }
    }
}

/// The server's clock.
#[derive(Debug)]
pub(crate) struct ServerClock {
    /// In thousandths of the true rate.
    pub(crate) rate: u32,
    faketime: PathBuf,
    /// That of the run is closed to the account of the server.
    folder: TempDir,
    /// The server's process.
    pub(crate) pid: Option<u32>,
}

impl ServerClock {
    pub(crate) fn new(faketime: &Path, rate: u32) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("dblock-clock-").tempdir()?;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
        let clock = Self {
            rate,
            faketime: faketime.to_owned(),
            folder,
            pid: None,
        };
        clock.set(0)?;
        Ok(clock)
    }

    /// Lets it jump to so many milliseconds from the time by its rate.
    pub(crate) fn set(&self, to_ms: i32) -> anyhow::Result<()> {
        write(&self.file(), f64::from(to_ms) / 1_000.0, self.rate)
    }

    /// The environment of the server.
    pub(crate) fn variables(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("LD_PRELOAD", self.faketime.clone()),
            ("FAKETIME_TIMESTAMP_FILE", self.file()),
            // All sessions see a jump at once.
            ("FAKETIME_NO_CACHE", "1".into()),
        ]
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("clock")
    }
}

impl Drop for ServerClock {
    fn drop(&mut self) {
        self.pid.into_iter().for_each(forget);
    }
}

/// Deletes what libfaketime leaves behind when its process is killed, or was started by another program.
pub(crate) fn forget(pid: u32) {
    for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
    }
}

/// Writes a clock's file: so many seconds from the time by its rate, which is in thousandths of the true one.
pub(crate) fn write(file: &Path, offset: f64, rate: u32) -> anyhow::Result<()> {
    // A rename, so that nobody reads half a file.
    let draft = file.with_extension("new");
    std::fs::write(
        &draft,
        format!("{offset:+.3} x{:.3}\n", f64::from(rate) / 1_000.0),
    )?;
    std::fs::rename(draft, file).context("setting a clock")
}
