//! The test programs of the workspace: cargo builds them all, and they run several at a time, each with an
//! output of its own.
//!
//! `cargo test` would run one after the other, and most of a test is waiting for a lease to end.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures_util::stream::{self, StreamExt as _};
use tokio::process::Command;

use crate::command::{PROGRAM_LIMIT, STOP, kept_within, show};
use crate::steps::{LEFT_OUT, Passed};

/// How many programs run at once. Each runs several tests at once.
const AT_ONCE: usize = 3;

/// The program that runs longest, and hardly needs the processor: so many of its tests run at once.
const WAITS: (&str, &str) = ("conformance", "8");

/// The programs that run longest begin first, so that none of them runs alone in the end.
const LONGEST: [&str; 4] = ["conformance", "cancellation", "faults", "manager"];

/// The programs that call cargo, some hundred times, by package and name. A step of their own has them.
pub(crate) const MESSAGES: [(&str, &str); 3] = [
    ("dblock-ui-tests", "ui"),
    ("dblock-ui-tests", "lints"),
    ("dblock-renamed-tests", "messages"),
];

/// A program that cargo has built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    package: String,
    name: String,
    file: PathBuf,
    /// Where it runs, as with `cargo test`.
    folder: PathBuf,
}

impl Program {
    /// Whether most of what it does is compiling.
    pub(crate) fn compiles(&self) -> bool {
        MESSAGES.contains(&(&*self.package, &*self.name))
    }

    /// The command that `cargo test` would run.
    pub(crate) fn command(&self, variables: &[(String, String)]) -> Command {
        let mut command = Command::new(&self.file);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO_MANIFEST_PATH", self.folder.join("Cargo.toml"))
            .env("CARGO_PKG_NAME", &self.package)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        if self.name == WAITS.0 {
            command.env("RUST_TEST_THREADS", WAITS.1);
        }
        command
    }

    fn title(&self) -> String {
        format!("{} {}", self.package, self.name)
    }

    fn rank(&self) -> usize {
        let rank = LONGEST.iter().position(|name| *name == self.name);
        rank.unwrap_or(LONGEST.len())
    }
}

/// The test programs in what `cargo test --no-run --message-format=json` prints; those that run longest
/// first.
pub(crate) fn built(messages: &str) -> anyhow::Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: serde_json::Value = serde_json::from_str(line).context("cargo's messages are JSON")?;
        if message["profile"]["test"] != true {
            continue;
        }
        let Some(file) = message["executable"].as_str() else {
            continue;
        };
        let parts = || {
            let manifest = Path::new(message["manifest_path"].as_str()?);
            Some((message["target"]["name"].as_str()?, manifest.parent()?))
        };
        let (name, folder) = parts().with_context(|| format!("cargo does not say what {file} is"))?;
        programs.push(Program {
            package: package(message["package_id"].as_str().unwrap_or_default(), folder),
            name: name.to_owned(),
            file: file.into(),
            folder: folder.to_owned(),
        });
    }
    programs.sort_by_key(Program::rank);
    Ok(programs)
}

/// The name in a package's id, `path+file:///folder#name@version`, or `path+file:///name#version` where the
/// folder has the same name.
fn package(id: &str, folder: &Path) -> String {
    let named = id
        .rsplit_once('#')
        .and_then(|(_, rest)| Some(rest.split_once('@')?.0));
    let folder = folder.file_name().unwrap_or_default();
    named.map_or_else(|| folder.to_string_lossy().into_owned(), str::to_owned)
}

/// Runs the programs, some at a time. Says how each went as it ends; shows the whole output of one that
/// fails.
pub(crate) async fn run(programs: &[Program], variables: &[(String, String)]) -> anyhow::Result<Passed> {
    let ended = stream::iter(programs).map(|program| run_one(program, variables));
    let mut ended = ended.buffer_unordered(AT_ONCE);
    let (mut passed, mut failed) = (Passed::default(), Vec::new());
    while let Some((program, output)) = ended.next().await {
        match output {
            Some(output) => passed.note(&output),
            None => failed.push(program.title()),
        }
    }
    if !failed.is_empty() {
        bail!("failed, with their output above: {}", failed.join(", "));
    }
    Ok(passed)
}

/// Returns what the program printed, if it passed.
async fn run_one<'p>(program: &'p Program, variables: &[(String, String)]) -> (&'p Program, Option<String>) {
    let begin = Instant::now();
    let ended = kept_within(PROGRAM_LIMIT, &mut program.command(variables), STOP).await;
    let time = begin.elapsed();
    let output = match ended {
        Ok(ended) if ended.passed => {
            report(program, time, &ended.output);
            Some(ended.output)
        }
        Ok(ended) => {
            show(&program.title(), &ended.output);
            None
        }
        Err(error) => {
            show(&program.title(), &format!("{error:#}"));
            None
        }
    };
    (program, output)
}

fn report(program: &Program, time: Duration, output: &str) {
    // A test writes such lines past the harness for people to see.
    for line in output.lines().filter(|line| line.starts_with(LEFT_OUT)) {
        eprintln!("{line}");
    }
    let result = result(output);
    eprintln!("{:6.1} s  {}: {result}", time.as_secs_f64(), program.title());
}

/// The last line of the test harness, without the time.
fn result(output: &str) -> &str {
    let line = output
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("test result: "));
    let counts = line.unwrap_or("no result");
    counts
        .split_once("; finished")
        .map_or(counts, |(counts, _)| counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, manifest: &str, target: &str, test: bool, executable: &str) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": id,
            "manifest_path": manifest,
            "target": {"name": target},
            "profile": {"test": test},
            "executable": (!executable.is_empty()).then_some(executable),
        })
        .to_string()
    }

    #[test]
    fn programs_are_read_from_the_messages_of_cargo() {
        let messages = [
            message(
                "registry+https://x#serde@1.0.0",
                "/r/Cargo.toml",
                "serde",
                false,
                "",
            ),
            message(
                "path+file:///w/tests#dblock-tests@0.1.0",
                "/w/tests/Cargo.toml",
                "holder",
                false,
                "/t/holder",
            ),
            message(
                "path+file:///w/tests#dblock-tests@0.1.0",
                "/w/tests/Cargo.toml",
                "events",
                true,
                "/t/events-1",
            ),
            message(
                "path+file:///w/dblock#0.1.0",
                "/w/dblock/Cargo.toml",
                "dblock",
                true,
                "/t/dblock-2",
            ),
            message(
                "path+file:///w/tests#dblock-tests@0.1.0",
                "/w/tests/Cargo.toml",
                LONGEST[0],
                true,
                "/t/long-3",
            ),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let programs = built(&messages.join("\n")).unwrap();
        let titles: Vec<_> = programs.iter().map(Program::title).collect();
        let long = format!("dblock-tests {}", LONGEST[0]);
        assert_eq!(titles, [&*long, "dblock-tests events", "dblock dblock"]);
        assert_eq!(programs[1].folder, Path::new("/w/tests"));
        assert_eq!(programs[1].file, Path::new("/t/events-1"));
    }

    #[test]
    fn the_result_is_the_last_one() {
        let output = "test result: ok. 1 passed; 0 failed; finished in 1.00s\nx\n\
                      test result: ok. 2 passed; 0 failed; finished in 0.01s\n";
        assert_eq!(result(output), "ok. 2 passed; 0 failed");
        assert_eq!(result("nothing"), "no result");
    }

    fn script(folder: &Path, name: &str, text: &str) -> Program {
        use std::os::unix::fs::PermissionsExt as _;

        let file = folder.join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        Program {
            package: "sample".to_owned(),
            name: name.to_owned(),
            file,
            folder: folder.to_owned(),
        }
    }

    #[tokio::test]
    async fn all_programs_run_and_those_that_fail_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name, text| script(folder.path(), name, text);
        let programs = [
            script("good", "test \"$WORD\" = word && touch one"),
            script("bad", "exit 1"),
            script("worse", "exit 101"),
            script("last", "test \"$CARGO_PKG_NAME\" = sample && touch two"),
        ];
        let error = run(&programs, &[("WORD".to_owned(), "word".to_owned())]).await;
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("sample bad") && error.contains("sample worse"),
            "{error}"
        );
        assert!(!error.contains("good") && !error.contains("last"), "{error}");
        assert!(folder.path().join("one").exists() && folder.path().join("two").exists());
    }

    #[tokio::test]
    async fn programs_run_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        // Each waits for the other.
        let one = script(
            folder.path(),
            "one",
            "touch 1; while ! test -e 2; do sleep 0.01; done",
        );
        let two = script(
            folder.path(),
            "two",
            "touch 2; while ! test -e 1; do sleep 0.01; done",
        );
        run(&[one, two], &[]).await.unwrap();
    }
}
