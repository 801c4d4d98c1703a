//! A copy of the working tree, or of a commit, which a task may change.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tokio::process::Command;

use crate::command::{output, run, top};

/// Deleted when dropped.
pub(crate) struct Tree(PathBuf);

impl Tree {
    /// Copies what git has or would add to `folder`. The same place each time keeps what was built from it: cargo knows crates by where
    /// they are.
    pub(crate) async fn copy(folder: PathBuf) -> anyhow::Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let tree = Self(folder);
        let mut list = Command::new("git");
        list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        for file in output(list.current_dir(top())).await?.split_terminator('\0') {
            tree.copy_one(file)?;
        }
        Ok(tree)
    }

    /// What git has at a commit.
    pub(crate) async fn of_commit(commit: &str, folder: PathBuf) -> anyhow::Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let tree = Self(folder);
        let git = || Command::new("git");
        let (mut clone, mut checkout) = (git(), git());
        clone.args(["clone", "--quiet", "--shared", "--no-checkout"]);
        run(clone.arg(top()).arg(&tree.0)).await?;
        checkout.args(["checkout", "--quiet", "--detach", commit]);
        run(checkout.current_dir(&tree.0)).await?;
        Ok(tree)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    fn copy_one(&self, file: &str) -> anyhow::Result<()> {
        let (from, to) = (top().join(file), self.0.join(file));
        let Ok(kind) = fs::symlink_metadata(&from) else {
            // Deleted, and git has not been told.
            return Ok(());
        };
        fs::create_dir_all(to.parent().context("it is in a folder")?)?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, to)?;
        } else {
            fs::copy(&from, to).with_context(|| from.display().to_string())?;
        }
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // The next copy deletes what is left.
        let _ = fs::remove_dir_all(&self.0);
    }
}
