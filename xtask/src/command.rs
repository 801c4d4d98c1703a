//! Running commands to their end.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use dblock_servers::process::{Process, Stop, Target, shown};
use rustix::process::Signal;
use tokio::process::Command;

/// No command takes this long unless it hangs.
const LIMIT: Duration = Duration::from_mins(80);

/// No test program takes this long unless it hangs.
pub(crate) const PROGRAM_LIMIT: Duration = Duration::from_mins(20);

/// A command may have compilers or tests below it: all of them are asked to end.
pub(crate) const STOP: Stop = Stop {
    signal: Signal::TERM,
    to: Target::Group,
    grace: Duration::from_secs(5),
};

/// How a step's commands run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// With their output on ours.
    Shown,
    /// While others run: at a low priority, so that tests are not late, and with an output that is shown only
    /// if the command fails.
    Beside,
}

impl Way {
    pub(crate) async fn run(self, command: &mut Command) -> anyhow::Result<()> {
        match self {
            Self::Shown => run(command).await,
            Self::Beside => quietly(&mut politely(command), &plain(command)).await,
        }
    }

    /// Runs what is not a compiler, and is late at a low priority.
    pub(crate) async fn run_in_time(self, command: &mut Command) -> anyhow::Result<()> {
        match self {
            Self::Shown => run(command).await,
            Self::Beside => {
                let line = plain(command);
                quietly(command, &line).await
            }
        }
    }
}

/// Runs a program of the project's to its end, with its output on ours. Its exit code is ours.
pub(crate) async fn carry_out(mut command: Command, stop: Stop) -> anyhow::Result<ExitCode> {
    eprintln!("$ {}", shown(&command));
    let status = Process::start(&mut command, stop)?.wait().await?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The word that chooses a value on the command line.
pub(crate) fn word(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Runs a command to its end, and shows its output only if it fails.
async fn quietly(command: &mut Command, line: &str) -> anyhow::Result<()> {
    let ended = kept(command, STOP).await?;
    if ended.passed {
        return Ok(());
    }
    show(line, &ended.output);
    bail!("`{line}` failed; its output is above")
}

/// Settings of cargo that make a build in a fresh clone quicker: nothing is prepared for a next build, and
/// nothing for a debugger. A value from the environment wins.
const QUICKER: [(&str, &str); 2] = [("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")];

/// Cargo, the one that runs us, at the top of the workspace.
pub(crate) fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(top());
    for (name, value) in QUICKER {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command
}

/// Cargo, with Clippy's compiler for our own crates: what it builds is linted at the same time, and a warning
/// fails. To check the code once more for Clippy alone would take minutes on two cores. All steps that build
/// the same use it, so that they share what was built.
pub(crate) fn linting_cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = cargo(arguments);
    let driver = Path::new(command.as_std().get_program()).with_file_name("clippy-driver");
    // As `cargo clippy -- -D warnings` does it.
    command.env("RUSTC_WORKSPACE_WRAPPER", driver);
    command.env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    command
}

/// The top of the workspace.
pub(crate) fn top() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Runs a command to its end with its output on ours.
pub(crate) async fn run(command: &mut Command) -> anyhow::Result<()> {
    eprintln!("$ {}", plain(command));
    finish(command).await
}

async fn finish(command: &mut Command) -> anyhow::Result<()> {
    match end(command, STOP, LIMIT).await? {
        Ok(status) if status.success() => Ok(()),
        ended => bail!("`{}` failed: {}", plain(command), why(ended)),
    }
}

/// Runs a command to its end and returns what it prints; its errors are on ours.
pub(crate) async fn output(command: &mut Command) -> anyhow::Result<String> {
    let mut file = tempfile::tempfile().context("a temporary file")?;
    finish(command.stdout(file.try_clone()?)).await?;
    text(&mut file)
}

/// A command that has ended, or was stopped at its limit.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) passed: bool,
    /// Its output, and how it ended if it failed.
    pub(crate) output: String,
}

/// Runs a command to its end and keeps all that it prints.
pub(crate) async fn kept(command: &mut Command, stop: Stop) -> anyhow::Result<Ended> {
    kept_within(LIMIT, command, stop).await
}

/// As [`kept`], and stops it at `limit`.
pub(crate) async fn kept_within(limit: Duration, command: &mut Command, stop: Stop) -> anyhow::Result<Ended> {
    let mut file = tempfile::tempfile().context("a temporary file")?;
    command.stdout(file.try_clone()?).stderr(file.try_clone()?);
    let ended = end(command, stop, limit).await?;
    let mut output = text(&mut file)?;
    let passed = ended.is_ok_and(|status| status.success());
    if !passed {
        output.push_str(&why(ended));
        output.push('\n');
    }
    Ok(Ended { passed, output })
}

/// How the command ended; the limit if it was stopped there.
async fn end(
    command: &mut Command,
    stop: Stop,
    limit: Duration,
) -> anyhow::Result<Result<ExitStatus, Duration>> {
    let mut process = Process::start(command, stop)?;
    match tokio::time::timeout(limit, process.wait()).await {
        Ok(ended) => Ok(Ok(ended?)),
        Err(_) => Ok(Err(limit)),
    }
}

fn why(ended: Result<ExitStatus, Duration>) -> String {
    match ended {
        Ok(status) => status.to_string(),
        Err(limit) => format!("stopped after {} minutes", limit.as_secs() / 60),
    }
}

fn text(file: &mut File) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Shows a kept output in one piece.
pub(crate) fn show(title: &str, output: &str) {
    let mut stderr = std::io::stderr().lock();
    // Nobody can be told that stderr is gone.
    let _ = writeln!(
        stderr,
        "\n── output of {title}\n{}\n── end of it",
        output.trim_end()
    );
}

/// The same command at a low priority.
fn politely(command: &Command) -> Command {
    let command = command.as_std();
    let mut polite = Command::new("nice");
    polite.args(["-n", "15"]).arg(command.get_program());
    polite.args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        polite.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => polite.env(name, value),
            None => polite.env_remove(name),
        };
    }
    polite
}

/// A command line to copy: `cargo` without the path to it.
fn plain(command: &Command) -> String {
    let line = shown(command);
    match line.split_once(' ') {
        Some((program, arguments)) if Path::new(program).ends_with("cargo") => format!("cargo {arguments}"),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn an_output_is_kept_whole() {
        let ended = kept(&mut shell("echo one; echo two >&2"), STOP).await.unwrap();
        assert!(ended.passed);
        assert_eq!(ended.output, "one\ntwo\n");
        let ended = kept(&mut shell("echo why; exit 3"), STOP).await.unwrap();
        assert!(!ended.passed);
        assert_eq!(ended.output, "why\nexit status: 3\n");
    }

    #[tokio::test]
    async fn a_polite_command_is_the_same_at_a_low_priority() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = shell("echo $WORD; pwd; nice");
        command.env("WORD", "word").current_dir(folder.path());
        let ended = kept(&mut politely(&command), STOP).await.unwrap();
        let lines: Vec<_> = ended.output.lines().collect();
        let folder = folder.path().canonicalize().unwrap();
        assert_eq!(lines[..2], ["word", folder.to_str().unwrap()]);
        assert!(lines[2].parse::<i32>().unwrap() >= 15, "{lines:?}");
    }

    #[tokio::test]
    async fn a_command_that_is_given_up_ends_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = shell("sleep 100 & echo $! > child; mv child ready; wait");
        command.current_dir(folder.path());
        let ready = folder.path().join("ready");
        let started = async {
            while !ready.exists() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = kept(&mut command, STOP) => panic!("it sleeps"),
            () = started => {}
        }
        let child = std::fs::read_to_string(&ready).unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        while !(stat().is_empty() || stat().contains(") Z ")) {
            tokio::task::yield_now().await;
        }
    }
}
