//! `cargo xtask recipes`: the recipes for other crates compile, and Clippy has no warning. None is run.

use std::process::ExitCode;

use crate::command::{cargo, run as run_to_end};

const MANIFEST: [&str; 2] = ["--manifest-path", "examples/recipes/Cargo.toml"];

pub(crate) async fn run() -> anyhow::Result<ExitCode> {
    run_to_end(cargo(["fmt", "--check"]).args(MANIFEST)).await?;
    let mut clippy = cargo(["clippy", "--locked", "--all-targets"]);
    run_to_end(clippy.args(MANIFEST).args(["--", "-D", "warnings"])).await?;
    Ok(ExitCode::SUCCESS)
}
