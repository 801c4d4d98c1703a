//! What each step of `cargo xtask test` runs.

use std::fmt;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::process::Signal;
use tokio::process::Command;

use crate::process::{Process, Stop, Target, shown};
use crate::servers::{Purpose, Servers};
use crate::{api, circles, stale, torture};

/// What is built together: every feature but TLS, which needs headers of OpenSSL that a bare machine does
/// not have, and which is sqlx's to test.
const FEATURES: &str =
    "dblock/conformance,dblock/macros,dblock/mysql,dblock/postgres,dblock/simulation,dblock/sqlite";

/// The stores that stand behind a feature, and the driver that each brings.
const STORES: [(&str, &str); 3] = [
    ("mysql", "sqlx-mysql"),
    ("postgres", "sqlx-postgres"),
    ("sqlite", "sqlx-sqlite"),
];

/// A folder in memory, where Linux has one: a commit to a disk may stall for seconds, which fails tests by chance.
const MEMORY: &str = "/dev/shm";

/// Far more bytes than the tests' files have.
#[cfg(target_os = "linux")]
const ROOM: u64 = 4 << 30;

/// How many tests run at once, at least: most of a test is waiting for a lease to end, or to be renewed.
const AT_ONCE: usize = 4;

/// No command takes this long unless it hangs.
const LIMIT: Duration = Duration::from_mins(40);

/// A step is cargo with compilers or tests below it: all of them are asked to end.
const STOP: Stop = Stop {
    signal: Signal::TERM,
    to: Target::Group,
    grace: Duration::from_secs(5),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Step {
    /// The code is formatted.
    Fmt,
    /// Clippy has nothing to say.
    Clippy,
    /// No two modules of a published crate need each other.
    Circles,
    /// Each store builds alone without a warning, and brings no other store's driver.
    Stores,
    /// All tests of all crates, on all stores.
    Test,
    /// What threads share in the engine, in every order of threads.
    Loom,
    /// A short torture of each store, with the same faults every time.
    Torture,
    /// The documentation builds without a warning.
    Doc,
    /// The public API is the one that is written down.
    Api,
    /// The newcomer's first command works.
    Quickstart,
    /// The crates build from what would be published.
    Package,
}

/// How a step ended that did not fail.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// With what it ran on, where that is worth saying.
    Passed(Option<String>),
    /// With the reason.
    Skipped(String),
}

impl Step {
    pub(crate) const ALL: [Self; 11] = [
        Self::Fmt,
        Self::Clippy,
        Self::Circles,
        Self::Stores,
        Self::Test,
        Self::Loom,
        Self::Torture,
        Self::Doc,
        Self::Api,
        Self::Quickstart,
        Self::Package,
    ];

    pub(crate) async fn run(self, extra: &[String]) -> anyhow::Result<Outcome> {
        match self {
            Self::Fmt => run(&mut cargo(["fmt", "--all", "--check"])).await?,
            Self::Clippy => {
                let mut command = cargo(["clippy", "--workspace", "--all-targets", "--features", FEATURES]);
                run(command.args(["--", "-D", "warnings"])).await?;
            }
            Self::Circles => {
                for package in ["dblock", "dblock-macros"] {
                    circles::check(&top().join(package).join("src"))?;
                }
            }
            Self::Stores => stores().await?,
            Self::Test => return test(extra).await,
            Self::Loom => {
                let mut command = cargo(["test", "--profile", "loom", "-p", "dblock", "--lib"]);
                command.args(["--no-default-features", "loom_tests"]);
                run(command.env("RUSTFLAGS", "--cfg loom")).await?;
            }
            Self::Torture => torture::briefly().await?,
            Self::Doc => {
                let mut command = cargo(["doc", "--workspace", "--no-deps", "--features", FEATURES]);
                run(command.env("RUSTDOCFLAGS", "-D warnings")).await?;
            }
            Self::Api => api::check().await?,
            Self::Quickstart => {
                if !example_exists("quickstart").await? {
                    return Ok(Outcome::Skipped("there is no such example".to_owned()));
                }
                run(&mut cargo(["run", "--example", "quickstart"])).await?;
            }
            Self::Package => {
                stale::forget(&cargo_home()?, &target_folder().await?)?;
                run(&mut cargo([
                    "package",
                    "-p",
                    "dblock-macros",
                    "-p",
                    "dblock",
                    "--allow-dirty",
                ]))
                .await?;
                // It is verified without stores, because both packages would have to have their features.
                let files =
                    output(&mut cargo(["package", "-p", "dblock", "--allow-dirty", "--list"])).await?;
                for (store, _) in STORES {
                    let folder = format!("migrations/{store}/");
                    ensure!(files.contains(&folder), "{folder} is not in the package");
                }
            }
        }
        Ok(Outcome::Passed(None))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Circles => "circles",
            Self::Stores => "stores",
            Self::Test => "test",
            Self::Loom => "loom",
            Self::Torture => "torture",
            Self::Doc => "doc",
            Self::Api => "api",
            Self::Quickstart => "quickstart",
            Self::Package => "package",
        })
    }
}

async fn stores() -> anyhow::Result<()> {
    let sets = STORES
        .iter()
        .map(|(store, driver)| (*store, Some(*driver)))
        .chain([("", None)]);
    for (features, own) in sets {
        let alone = ["-p", "dblock", "--no-default-features", "--features", features];
        let tree =
            output(cargo(["tree", "-e", "normal", "--prefix", "none", "-f", "{p}"]).args(alone)).await?;
        let drivers = drivers(&tree);
        ensure!(
            drivers == Vec::from_iter(own),
            "with the features `{features}` the drivers are {drivers:?}, not only {own:?}"
        );
        run(cargo(["clippy"]).args(alone).args(["--", "-D", "warnings"])).await?;
    }
    Ok(())
}

/// The drivers in the output of `cargo tree`, each once.
fn drivers(tree: &str) -> Vec<&'static str> {
    let drivers = STORES.iter().map(|(_, driver)| *driver);
    drivers
        .filter(|driver| tree.lines().any(|line| line.split(' ').next() == Some(driver)))
        .collect()
}

async fn test(extra: &[String]) -> anyhow::Result<Outcome> {
    let servers = Servers::start_missing(Purpose::Tests).await?;
    let on = servers.names().join(" and ");
    // A run takes minutes: it shows all that fails.
    let mut command = cargo(["test", "--no-fail-fast"]);
    command.args(test_arguments(extra)).envs(servers.variables());
    // A test that finds no server fails then, instead of being left out.
    command.env("DBLOCK_TEST_REQUIRE_SERVERS", "1");
    if memory_has_room() {
        command.env("TMPDIR", MEMORY);
    }
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    if processors < AT_ONCE && std::env::var_os("RUST_TEST_THREADS").is_none() {
        command.env("RUST_TEST_THREADS", AT_ONCE.to_string());
    }
    run(&mut command).await?;
    Ok(Outcome::Passed((!on.is_empty()).then(|| format!("on {on}"))))
}

/// Whether the tests' files, such as SQLite's, may be in memory. Test programs are built and run there, too.
#[cfg(target_os = "linux")]
fn memory_has_room() -> bool {
    use rustix::fs::{StatVfsMountFlags, statvfs};

    statvfs(MEMORY)
        .is_ok_and(|at| at.f_bavail * at.f_frsize >= ROOM && !at.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

#[cfg(not(target_os = "linux"))]
fn memory_has_room() -> bool {
    false
}

/// All packages, unless `extra` chooses some.
fn test_arguments(extra: &[String]) -> Vec<&str> {
    let ours = extra.iter().map(String::as_str).take_while(|word| *word != "--");
    let chosen = ours
        .into_iter()
        .any(|word| word.starts_with("-p") || word.starts_with("--package"));
    let all = if chosen {
        &[][..]
    } else {
        &["--workspace", "--features", FEATURES][..]
    };
    all.iter()
        .copied()
        .chain(extra.iter().map(String::as_str))
        .collect()
}

async fn example_exists(name: &str) -> anyhow::Result<bool> {
    let metadata = metadata().await?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists packages")?;
    let mut targets = packages
        .iter()
        .filter_map(|package| package["targets"].as_array())
        .flatten();
    Ok(targets.any(|target| target["name"] == name && target["kind"][0] == "example"))
}

pub(crate) async fn target_folder() -> anyhow::Result<PathBuf> {
    let metadata = metadata().await?;
    metadata["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .context("cargo metadata names the target folder")
}

async fn metadata() -> anyhow::Result<serde_json::Value> {
    let metadata = output(&mut cargo(["metadata", "--no-deps", "--format-version", "1"])).await?;
    serde_json::from_str(&metadata).context("cargo metadata is JSON")
}

fn cargo_home() -> anyhow::Result<PathBuf> {
    let given = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    given
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")))
        .context("there is no home folder")
}

/// Cargo, the one that runs us, at the top of the workspace.
pub(crate) fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(top());
    command
}

/// The folder of the workspace.
pub(crate) fn top() -> &'static Path {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    ours.parent().unwrap_or(ours)
}

/// Runs a command to its end with its output on ours.
pub(crate) async fn run(command: &mut Command) -> anyhow::Result<()> {
    eprintln!("$ {}", plain(command));
    let mut process = Process::start(command, STOP)?;
    let status = tokio::time::timeout(LIMIT, process.wait())
        .await
        .with_context(|| format!("`{}` was stopped after {LIMIT:?}", plain(command)))??;
    if !status.success() {
        bail!("`{}` failed with {status}", plain(command));
    }
    Ok(())
}

/// Runs a command to its end and returns what it prints.
async fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .kill_on_drop(true)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .await;
    let output = output.with_context(|| format!("cannot run `{}`", plain(command)))?;
    ensure!(
        output.status.success(),
        "`{}` failed with {}",
        plain(command),
        output.status
    );
    String::from_utf8(output.stdout).with_context(|| format!("`{}` prints UTF-8", plain(command)))
}

/// A command line to copy: `cargo` without the path to it.
fn plain(command: &Command) -> String {
    let line = shown(command);
    line.split_once(' ')
        .map_or(line.clone(), |(_, arguments)| format!("cargo {arguments}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_read_from_the_tree() {
        let tree = "dblock v0.1.0 (/x/sqlx-mysql)\nsqlx v0.9.0\nsqlx-core v0.9.0\nsqlx-sqlite v0.9.0\n\
                    sqlx-core v0.9.0 (*)\nsqlx-sqlite v0.9.0 (*)\n";
        assert_eq!(drivers(tree), ["sqlx-sqlite"]);
        assert_eq!(
            drivers("sqlx-mysql v1\nsqlx-postgres v1"),
            ["sqlx-mysql", "sqlx-postgres"]
        );
        assert!(drivers("dblock v0.1.0\ntokio v1.54.0").is_empty());
    }

    #[test]
    fn extra_arguments_may_choose_a_package() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            test_arguments(&words("a_test")),
            ["--workspace", "--features", FEATURES, "a_test"]
        );
        assert_eq!(
            test_arguments(&words("-p xtask a_test")),
            ["-p", "xtask", "a_test"]
        );
        assert_eq!(test_arguments(&words("--package=xtask")), ["--package=xtask"]);
        assert_eq!(
            test_arguments(&words("-- -p")),
            ["--workspace", "--features", FEATURES, "--", "-p"]
        );
    }
}
