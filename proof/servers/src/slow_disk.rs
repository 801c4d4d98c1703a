//! A disk that takes long for each commit: a library that a server loads, which waits before each sync.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tokio::process::Command;

use crate::account::Account;
use crate::launch::prepare;
use crate::programs;

/// The compiler that makes the library.
const COMPILER: &str = "cc";

/// While the file `slow` is in the server's folder, each sync waits.
const SOURCE: &str = "
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static void wait_if_slow(void) {
    struct timespec pause = { MILLIS / 1000, MILLIS % 1000 * 1000000L };
    if (access(\"slow\", F_OK) == 0) nanosleep(&pause, NULL);
}
int fsync(int file) { wait_if_slow(); return syscall(SYS_fsync, file); }
int fdatasync(int file) { wait_if_slow(); return syscall(SYS_fdatasync, file); }
";

/// The disk of one server.
#[derive(Debug)]
pub struct SlowDisk {
    account: Account,
    folder: PathBuf,
}

impl SlowDisk {
    /// Whether there can be one here.
    pub fn can_be_made() -> bool {
        cfg!(target_os = "linux")
    }

    /// For a server with its files in `folder`, which is fast at first.
    pub(crate) async fn make(account: Account, folder: &Path, commit: Duration) -> anyhow::Result<Self> {
        let compiler = programs::in_path(COMPILER).context("there is no C compiler")?;
        account.write(&folder.join("slow.c"), SOURCE)?;
        let mut command = Command::new(compiler);
        command
            .current_dir(folder)
            .args(["-shared", "-fPIC", "-o", "slow.so", "slow.c"])
            .arg(format!("-DMILLIS={}L", commit.as_millis()));
        prepare(command).await?;
        Ok(Self {
            account,
            folder: folder.to_owned(),
        })
    }

    /// Has a server use the disk.
    pub(crate) fn under(folder: &Path, command: &mut Command) {
        command.env("LD_PRELOAD", folder.join("slow.so"));
    }

    /// From now on each commit takes long.
    ///
    /// # Errors
    /// The server's files are gone.
    pub fn slow_down(&self) -> anyhow::Result<()> {
        self.account.write(&self.folder.join("slow"), "")
    }

    /// From now on each commit takes as long as it does.
    ///
    /// # Errors
    /// The server's files are gone.
    pub fn speed_up(&self) -> anyhow::Result<()> {
        Ok(std::fs::remove_file(self.folder.join("slow"))?)
    }
}
