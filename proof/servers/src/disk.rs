//! A disk that fails on command: an ext4 file system in a file, which only root can mount, on Linux.
//!
//! Its file is the only one of another such file system, the disk's medium. What the kernel has written to the disk and not
//! flushed is not on the medium yet, as in a disk's cache. The kernel itself makes the failures, so all that a server
//! does with its files meets them.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::launch::prepare;
use crate::programs;

/// The size of the disk. Its file takes what has been written.
const SIZE: u64 = 1 << 30;

/// The medium has room for all of the disk.
const SIZE_OF_MEDIUM: u64 = 2 * SIZE;

/// The kernel's call `EXT4_IOC_SHUTDOWN`, without a flush of the journal: nothing reaches a file system any more, and it
/// forgets what was not synced. Perl is in each Debian.
const SHUT_DOWN: &str =
    "open my $disk, '<', shift or die $!; my $how = pack 'L', 2; ioctl $disk, 0x8004587d, $how or die $!";

/// Makes block devices of files. Containers without further rights have none.
const LOOP_DEVICES: &str = "/dev/loop-control";

/// How long the processes of a killed server may keep the disk busy.
const BUSY: Duration = Duration::from_secs(10);

const ASK_EVERY: Duration = Duration::from_millis(20);

/// A disk, with its files in a folder.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    /// The medium's file, and the folder that it is mounted at.
    below: TempDir,
}

impl Disk {
    /// Whether there can be one here.
    pub fn can_be_made() -> bool {
        rustix::process::geteuid().is_root() && Path::new(LOOP_DEVICES).exists()
    }

    /// An empty disk, with its files in `folder`.
    ///
    /// # Errors
    /// There can be none here.
    pub async fn make(folder: &Path) -> anyhow::Result<Self> {
        ensure!(
            Self::can_be_made(),
            "a disk that fails is an ext4 file system in a file: mounting it needs root, and {LOOP_DEVICES} of Linux"
        );
        let disk = Self {
            folder: folder.to_owned(),
            below: tempfile::Builder::new().prefix("dblock-disk-").tempdir()?,
        };
        let medium = disk.medium();
        fs::create_dir(&medium)?;
        format(&image_in(disk.below.path()), SIZE_OF_MEDIUM).await?;
        mount(disk.below.path(), &medium).await?;
        format(&image_in(&medium), SIZE).await?;
        mount(&medium, folder).await?;
        disk.sync().await?;
        Ok(disk)
    }

    fn medium(&self) -> PathBuf {
        self.below.path().join("medium")
    }

    /// Waits until all that was written is on the medium.
    pub(crate) async fn sync(&self) -> anyhow::Result<()> {
        run("sync", &["--file-system"], &[&self.folder]).await
    }

    /// What was not synced is lost, and nothing can be synced (EIO), until the disk is [mounted again](Self::mount_again). The
    /// kernel soon allows no more writes either.
    ///
    /// # Errors
    /// It has failed already.
    pub async fn lose_power(&self) -> anyhow::Result<()> {
        run("perl", &["-e", SHUT_DOWN], &[&self.medium()]).await
    }

    /// The kernel has met an error of the file system, and mounted it read-only: each write fails with EROFS, until
    /// it is [mounted again](Self::mount_again).
    ///
    /// # Errors
    /// It has failed already.
    pub fn become_read_only(&self) -> anyhow::Result<()> {
        let device = fs::metadata(&self.folder)?.dev();
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let device = fs::canonicalize(Path::new("/sys/dev/block").join(number))?;
        let name = device.file_name().context("a device has a name")?;
        let fails = Path::new("/sys/fs/ext4").join(name).join("trigger_fs_error");
        fs::write(fails, "an error on command").context("the disk is not mounted")
    }

    /// Each write that needs more room fails with ENOSPC, until it is [emptied](Self::empty).
    pub async fn fill(&self) {
        // More than there is, so it takes all and fails.
        let size = ["--length", "2GiB"];
        let filled = run("fallocate", &size, &[&self.filler()]).await;
        debug_assert!(filled.is_err(), "the disk is larger than that");
    }

    /// There is room again.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn empty(&self) -> anyhow::Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// A machine that has started again mounts it, and the journal is replayed. Whoever used its files has ended.
    ///
    /// # Errors
    /// Somebody uses its files.
    pub async fn mount_again(&self) -> anyhow::Result<()> {
        let medium = self.medium();
        unmount(&self.folder).await?;
        unmount(&medium).await?;
        mount(self.below.path(), &medium).await?;
        mount(&medium, &self.folder).await?;
        // It may have been forgotten that the disk was emptied.
        let _ = fs::remove_file(self.filler());
        Ok(())
    }
}

fn image_in(folder: &Path) -> PathBuf {
    folder.join("image")
}

async fn format(image: &Path, size: u64) -> anyhow::Result<()> {
    File::create(image)?.set_len(size)?;
    run("mkfs.ext4", &["-q", "-F", "-m", "0"], &[image]).await
}

/// Mounts the image in a folder.
async fn mount(of: &Path, at: &Path) -> anyhow::Result<()> {
    let options = ["-o", "loop,errors=remount-ro"];
    run("mount", &options, &[&image_in(of), at]).await
}

async fn unmount(folder: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + BUSY;
    while let Err(busy) = run("umount", &[], &[folder]).await {
        ensure!(Instant::now() < deadline, busy);
        sleep(ASK_EVERY).await;
    }
    Ok(())
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: the children of a killed server may be about to end.
        let mut unmount = std::process::Command::new("umount");
        let unmounted = unmount
            .arg("--lazy")
            .args([&self.folder, &self.medium()])
            .status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("cannot unmount {}", self.folder.display());
        }
    }
}

async fn run(program: &str, options: &[&str], paths: &[&Path]) -> anyhow::Result<()> {
    let found = programs::in_path(program).with_context(|| format!("`{program}` is not installed"))?;
    let mut command = Command::new(found);
    command.args(options).args(paths);
    prepare(command).await
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;

    use super::*;

    #[tokio::test]
    async fn a_disk_forgets_what_was_not_synced_and_fails_on_command() {
        if !Disk::can_be_made() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::make(folder.path()).await.unwrap();
        let file = |name| folder.path().join(name);
        let fails = |name| fs::write(file(name), "text").unwrap_err();
        fs::write(file("synced"), "text").unwrap();
        File::open(file("synced")).unwrap().sync_all().unwrap();
        fs::write(file("not-synced"), "text").unwrap();

        disk.lose_power().await.unwrap();
        let unsynced = File::open(file("not-synced")).unwrap();
        let io_error = Some(rustix::io::Errno::IO.raw_os_error());
        assert_eq!(unsynced.sync_all().unwrap_err().raw_os_error(), io_error);
        drop(unsynced);
        disk.mount_again().await.unwrap();
        assert_eq!(fs::read_to_string(file("synced")).unwrap(), "text");
        assert!(!file("not-synced").exists());

        disk.fill().await;
        assert_eq!(fails("full").kind(), io::ErrorKind::StorageFull);
        disk.empty().unwrap();
        fs::write(file("full"), "text").unwrap();

        disk.become_read_only().unwrap();
        assert_eq!(fails("read-only").kind(), io::ErrorKind::ReadOnlyFilesystem);
        disk.mount_again().await.unwrap();
        fs::write(file("read-only"), "text").unwrap();
    }
}
