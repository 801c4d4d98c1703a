//! Programs of crates.io, each in the one version whose output we have read.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::command::{cargo, run};
use crate::steps::target_folder;

/// A program that a crate of the same name has.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// How cargo is told of its features.
    pub(crate) features: &'static [&'static str],
}

impl Tool {
    /// The machine's, or one that is built once into the target folder.
    pub(crate) async fn get(&self) -> anyhow::Result<PathBuf> {
        let tools = target_folder().await?.join("tools");
        let own = tools.join("bin").join(self.name);
        for program in [Path::new(self.name), &own] {
            let version = Command::new(program).arg("--version").output().await;
            if version.is_ok_and(|version| version.stdout.trim_ascii_end().ends_with(self.version.as_bytes()))
            {
                return Ok(program.to_owned());
            }
        }
        let mut install = cargo(["install", "--locked", self.name, "--version", self.version]);
        install.args(self.features).arg("--root").arg(tools);
        // To optimize them takes longer than they run.
        install.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
        run(&mut install).await?;
        Ok(own)
    }
}
