//! The commands of each step of `cargo xtask test`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use dblock_servers::{Purpose, Servers};
use tokio::process::Command;

use crate::command::{Way, cargo, linting_cargo, output, word};
use crate::environment::variables;
use crate::programs::{self, Program};
use crate::{api, book, etcd, install, package, stores, torture};

/// The features that are built together: all but TLS to SQL databases, which needs headers of OpenSSL that a bare
/// machine does not have, and which is sqlx's to test.
pub(crate) const FEATURES: &str = "dblock/macros,dblock/metrics,dblock/mysql,dblock/postgres,dblock/run_once,dblock/serde,dblock/sqlite,\
     dblock-conformance/fence,dblock-redis/tls-rustls,dblock-zookeeper/sasl-digest-md5,dblock-zookeeper/tls-rustls,\
     dblock-diesel-async/mysql,dblock-diesel-async/postgres,\
     dblock-sea-orm/mysql,dblock-sea-orm/postgres,dblock-sea-orm/sqlite";

/// It has a step of its own.
const MODEL: &str = "dblock-model";

/// The words that make cargo take all crates that can be built here but the [model](MODEL), and etcd with TLS and in the torture, if it
/// can.
pub(crate) fn workspace() -> Vec<&'static str> {
    let left_out = etcd::left_out();
    let mut words = vec!["--workspace", "--exclude", MODEL];
    words.extend(left_out.iter().flat_map(|name| ["--exclude", name]));
    if left_out.is_empty() {
        words.extend(["--features", "dblock-etcd/tls-rustls,dblock-torture/etcd"]);
    }
    words
}

/// In an order in which most have use for what those before them have built; those on demand stand last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Step {
    /// What the chosen steps need is here, or is installed with `--install`. Always runs.
    Install,
    /// The code is formatted.
    Fmt,
    /// All tests of all crates, on all stores. Clippy has nothing to say about what is built for it.
    Test,
    /// A short torture of each store, with the same faults every time.
    Torture,
    /// The newcomer's first command works.
    Quickstart,
    /// Every withdrawal is paid once, whatever dies.
    Payments,
    /// Each night's job is done exactly once, by processes whose clocks disagree.
    Nightly,
    /// The examples in the documentation.
    Doctests,
    /// The pages agree with each other, with the code and with their translations.
    Book,
    /// On demand: the compiler's messages about uses of the attribute.
    Messages,
    /// On demand: Clippy has nothing to say, also about tests. The tests are built by it, too.
    Clippy,
    /// On demand: the public API is the one that is written down.
    Api,
    /// On demand: each store builds alone without a warning, and brings no other store's driver.
    Stores,
    /// On demand: the model of the protocol, in all its states.
    Model,
    /// On demand: the parts of the engine that threads share, in every order of threads.
    Loom,
    /// On demand: the documentation of what would be published builds without a warning.
    Doc,
    /// On demand: the crates compile from the files that would be published.
    Package,
    /// On demand: so they do with the oldest dependencies that they allow.
    Minimal,
}

/// What a step that passed has to say.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// The servers that it ran on.
    pub(crate) on: Option<String>,
    pub(crate) left_out: BTreeSet<String>,
}

/// How a line begins that says what a test, or the torture, leaves out.
pub(crate) const LEFT_OUT: &str = "LEFT OUT: ";

impl Passed {
    pub(crate) fn without(what: impl IntoIterator<Item = String>) -> Self {
        Self {
            on: None,
            left_out: what.into_iter().collect(),
        }
    }

    /// Keeps what the output of a program says that it leaves out. Many tests need the same.
    pub(crate) fn note(&mut self, output: &str) {
        let lines = output.lines().filter_map(|line| line.strip_prefix(LEFT_OUT));
        self.left_out.extend(lines.map(|line| {
            let needs = line.split_once(" needs ").map_or(line, |(_, needs)| needs);
            let end = needs.find([';', ',']).unwrap_or(needs.len());
            needs[..end].to_owned()
        }));
    }
}

/// A step that waits more than it computes, after all that it needs was built.
#[derive(Debug)]
pub(crate) enum Ready {
    Test {
        programs: Vec<Program>,
        servers: Servers,
    },
    Torture(PathBuf),
}

/// What a run of the task was asked for.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub steps: Vec<Step>,
    /// Arguments for `cargo test`.
    pub extra: Vec<String>,
    pub install: bool,
}

impl Step {
    /// Whether it runs only when it is chosen.
    pub(crate) fn on_demand(self) -> bool {
        self >= Self::Messages
    }

    /// Whether it waits more than it computes.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Test | Self::Torture)
    }

    /// Whether it builds crates whose build needs more than Rust and a C compiler.
    pub(crate) fn builds_all(self) -> bool {
        !matches!(
            self,
            Self::Install | Self::Fmt | Self::Book | Self::Stores | Self::Model | Self::Loom
        )
    }

    /// Builds and starts what a step that [waits](Self::waits) needs.
    pub(crate) async fn make_ready(self) -> anyhow::Result<Ready> {
        if self == Self::Torture {
            return torture::build().await.map(Ready::Torture);
        }
        let (mut programs, servers) =
            tokio::try_join!(test_programs(Way::Shown), Servers::start_missing(Purpose::Tests))?;
        programs.retain(|program| !program.compiles());
        Ok(Ready::Test { programs, servers })
    }

    /// Runs the whole step, one of those that were chosen.
    pub(crate) async fn run(self, way: Way, chosen: &Chosen) -> anyhow::Result<Passed> {
        match self {
            Self::Install => {
                let packages = install::for_steps(&chosen.steps, chosen.install).await?;
                return Ok(Passed::without(packages.into_iter().map(str::to_owned)));
            }
            Self::Fmt => way.run(&mut cargo(["fmt", "--all", "--check"])).await?,
            Self::Test => return test(way, &chosen.extra).await,
            Self::Torture => return self.make_ready().await?.run().await,
            Self::Clippy => {
                let mut command = cargo(["clippy", "--all-targets", "--features", FEATURES]);
                command.args(workspace());
                way.run(command.args(["--", "-D", "warnings"])).await?;
            }
            Self::Messages => {
                let mut programs = test_programs(way).await?;
                programs.retain(Program::compiles);
                let mut failed = Vec::new();
                for program in &programs {
                    failed.extend(way.run(&mut program.command(&[])).await.err());
                }
                failed.into_iter().next().map_or(Ok(()), Err)?;
                ensure!(
                    programs.len() == programs::MESSAGES.len(),
                    "some of their programs are not there"
                );
            }
            Self::Doctests => {
                let mut command = linting_cargo(["test", "--doc", "--features", FEATURES]);
                way.run(command.args(workspace())).await?;
            }
            Self::Doc => {
                let mut command = cargo(["doc", "--no-deps", "--features", FEATURES]);
                let crates = package::libraries();
                command.args(crates.iter().flat_map(|name| ["-p", name]));
                way.run(command.env("RUSTDOCFLAGS", "-D warnings")).await?;
            }
            Self::Book => {
                book::check()?;
            }
            Self::Api => api::check(way).await?,
            Self::Stores => stores::check(way).await?,
            Self::Quickstart | Self::Payments | Self::Nightly => {
                example(way, &self.to_string()).await?;
            }
            Self::Model => way.run(&mut linting_cargo(["test", "-p", MODEL])).await?,
            Self::Loom => {
                let mut command = cargo(["test", "--profile", "loom", "-p", "dblock-core", "-p", "dblock"]);
                command.args(["--lib", "loom_tests"]);
                way.run(command.env("RUSTFLAGS", "--cfg dblock_loom")).await?;
            }
            Self::Package => package::verify(way).await?,
            Self::Minimal => package::minimal(way).await?,
        }
        Ok(Passed::default())
    }
}

impl Ready {
    pub(crate) async fn run(self) -> anyhow::Result<Passed> {
        match self {
            Self::Test { programs, servers } => {
                let passed = programs::run(&programs, &variables(&servers)).await?;
                Ok(Passed {
                    on: on(&servers),
                    ..passed
                })
            }
            Self::Torture(program) => torture::briefly(&program).await,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&word(self))
    }
}

/// Runs the example, which the tests have built if they were chosen.
async fn example(way: Way, name: &str) -> anyhow::Result<()> {
    let mut build = linting_cargo(["build", "--example", name, "--features", FEATURES]);
    way.run(build.args(workspace())).await?;
    let program = target_folder().await?.join("debug/examples").join(name);
    way.run_in_time(&mut Command::new(program)).await
}

/// Builds all test programs, and with them everything else that there is for Clippy to see.
async fn test_programs(way: Way) -> anyhow::Result<Vec<Program>> {
    let mut build = linting_cargo(["test", "--no-run", "--message-format=json-render-diagnostics"]);
    build.args(test_arguments(&workspace(), &[]));
    if way == Way::Beside {
        build.arg("--quiet");
    }
    programs::built(&output(&mut build).await?)
}

/// `cargo test` with the given words.
async fn test(way: Way, extra: &[String]) -> anyhow::Result<Passed> {
    let all = workspace();
    let servers = Servers::start_missing(Purpose::Tests).await?;
    // A run takes minutes: it shows all that fails.
    let mut command = cargo(["test", "--no-fail-fast"]);
    command
        .args(test_arguments(&all, extra))
        .envs(variables(&servers));
    way.run(&mut command).await?;
    Ok(Passed {
        on: on(&servers),
        ..Passed::default()
    })
}

fn on(servers: &Servers) -> Option<String> {
    let names = servers.names();
    (!names.is_empty()).then(|| format!("on {}", names.join(" and ")))
}

/// All packages of `workspace`, unless `extra` chooses some.
fn test_arguments<'a>(workspace: &[&'a str], extra: &'a [String]) -> Vec<&'a str> {
    let ours = extra.iter().map(String::as_str).take_while(|word| *word != "--");
    let chosen = ours
        .into_iter()
        .any(|word| word.starts_with("-p") || word.starts_with("--package"));
    let all = if chosen {
        Vec::new()
    } else {
        [workspace, &["--features", FEATURES]].concat()
    };
    all.into_iter().chain(extra.iter().map(String::as_str)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_arguments_may_choose_a_package() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            test_arguments(&["--workspace"], &words("a_test")),
            ["--workspace", "--features", FEATURES, "a_test"]
        );
        assert_eq!(
            test_arguments(&["--workspace"], &words("-p xtask a_test")),
            ["-p", "xtask", "a_test"]
        );
        assert_eq!(
            test_arguments(&["--workspace"], &words("--package=xtask")),
            ["--package=xtask"]
        );
        assert_eq!(
            test_arguments(&["--workspace"], &words("-- -p")),
            ["--workspace", "--features", FEATURES, "--", "-p"]
        );
    }
}
