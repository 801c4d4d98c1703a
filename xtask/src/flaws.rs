//! `cargo xtask flaws`: takes one rule after the other out of a copy of the code, with the patches in
//! `proof/flaws`, and demands that the simulation of the core, that of the whole stack, or a test of the core finds each.
//!
//! A patch begins with what it breaks, in words, with its judge, and with what a simulation says of it.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use tokio::process::Command;

use crate::command::{Ended, PROGRAM_LIMIT, STOP, cargo, kept, kept_within};
use crate::copied::Tree;
use crate::simulate;
use crate::steps::target_folder;

/// Where the patches are, from the top of the workspace.
const PATCHES: &str = "proof/flaws";

/// The tests that judge.
const TESTS: [&str; 3] = ["-p", "dblock-core", "--lib"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these, by the names of their files without `.patch`.
    flaws: Vec<String>,
}

struct Flaw {
    name: String,
    patch: PathBuf,
    judge: Judge,
    /// Words of the violation that the flaw leads to.
    finds: String,
}

/// What must find a flaw.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Judge {
    /// So many schedules of the simulation, from seed 1 on.
    Simulation(u64),
    /// So many runs of the whole stack.
    WholeStack(u64),
    /// A test of the core.
    Test(String),
}

impl fmt::Display for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulation(_) => f.write_str("simulation"),
            Self::WholeStack(_) => f.write_str("whole-stack"),
            Self::Test(_) => f.write_str("test"),
        }
    }
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let code = Copy::new().await?;
    let flaws = chosen(read(&code.tree.folder().join(PATCHES))?, &args.flaws)?;
    eprintln!("building the code as it is, which every judge must find good …");
    for judge in strictest(flaws.iter().map(|flaw| &flaw.judge)) {
        code.build(&judge).await?;
        if let Some(found) = code.judge(&judge).await? {
            bail!("the code as it is fails, so that nothing is shown: {found}");
        }
    }
    let mut missed = Vec::new();
    for flaw in &flaws {
        let begin = Instant::now();
        let (what, found) = match code.find(flaw).await {
            Ok(Some(found)) => ("found", found),
            Ok(None) => ("NOT FOUND", String::new()),
            Err(error) => ("NOT SHOWN", format!("{error:#}")),
        };
        if what != "found" {
            missed.push(&*flaw.name);
        }
        let seconds = begin.elapsed().as_secs();
        println!(
            "{:<34} {what} by {:<10} {seconds:>4} s  {found}",
            flaw.name,
            flaw.judge.to_string()
        );
    }
    ensure!(missed.is_empty(), "not found: {}", missed.join(", "));
    println!("all {} flaws are found", flaws.len());
    Ok(ExitCode::SUCCESS)
}

/// All patches in a folder, by their names.
fn read(folder: &Path) -> anyhow::Result<Vec<Flaw>> {
    let mut flaws = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let patch = entry?.path();
        if patch.extension() != Some(OsStr::new("patch")) {
            continue;
        }
        let text = fs::read_to_string(&patch)?;
        let (judge, finds) = head(&text).with_context(|| patch.display().to_string())?;
        let name = patch
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        flaws.push(Flaw {
            name,
            patch,
            judge,
            finds,
        });
    }
    flaws.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(flaws)
}

/// The judge that the head of a patch names, and words of what it finds.
fn head(patch: &str) -> anyhow::Result<(Judge, String)> {
    let head = || patch.lines().take_while(|line| !line.starts_with("diff "));
    let given = |name: &str| head().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let judge = match given("judge").and_then(|judge| judge.split_once(' ')) {
        Some(("simulation", seeds)) => Judge::Simulation(seeds.parse()?),
        Some(("whole-stack", seeds)) => Judge::WholeStack(seeds.parse()?),
        Some(("test", name)) => return Ok((Judge::Test(name.to_owned()), name.to_owned())),
        _ => bail!(
            "its head needs a line `judge: simulation SCHEDULES`, `judge: whole-stack RUNS` or `judge: test NAME`"
        ),
    };
    let finds = given("finds").context("its head needs a line `finds: WORDS OF THE VIOLATION`")?;
    Ok((judge, finds.to_owned()))
}

fn chosen(flaws: Vec<Flaw>, names: &[String]) -> anyhow::Result<Vec<Flaw>> {
    for name in names {
        ensure!(
            flaws.iter().any(|flaw| flaw.name == *name),
            "{PATCHES} has no {name}.patch"
        );
    }
    let wanted = |flaw: &Flaw| names.is_empty() || names.contains(&flaw.name);
    Ok(flaws.into_iter().filter(wanted).collect())
}

/// Judges that show all that these do.
fn strictest<'a>(judges: impl Iterator<Item = &'a Judge>) -> Vec<Judge> {
    let (mut schedules, mut runs) = (0, 0);
    let mut strictest = Vec::new();
    for judge in judges {
        match judge {
            Judge::Simulation(count) => schedules = schedules.max(*count),
            Judge::WholeStack(count) => runs = runs.max(*count),
            Judge::Test(_) => strictest.push(judge.clone()),
        }
    }
    strictest.extend((schedules > 0).then_some(Judge::Simulation(schedules)));
    strictest.extend((runs > 0).then_some(Judge::WholeStack(runs)));
    strictest
}

/// A copy of the code, into which flaws are put, with a target folder of its own: no program that others run has
/// a flaw in it.
struct Copy {
    tree: Tree,
    folder: PathBuf,
}

impl Copy {
    async fn new() -> anyhow::Result<Self> {
        let folder = target_folder().await?.join("flaws");
        let tree = Tree::copy(folder.join("tree")).await?;
        Ok(Self { tree, folder })
    }

    /// What the judge says of the flaw; `None` if it finds nothing.
    async fn find(&self, flaw: &Flaw) -> anyhow::Result<Option<String>> {
        self.apply(&flaw.patch, &[]).await?;
        let found = match self.build(&flaw.judge).await {
            Ok(()) => self.judge(&flaw.judge).await,
            Err(error) => Err(error),
        };
        self.apply(&flaw.patch, &["--reverse"]).await?;
        let found = found?;
        if let Some(found) = &found {
            ensure!(
                found.contains(&flaw.finds),
                "what is found is not {:?}: {found}",
                flaw.finds
            );
        }
        Ok(found)
    }

    async fn apply(&self, patch: &Path, how: &[&str]) -> anyhow::Result<()> {
        let mut git = Command::new("git");
        git.arg("apply")
            .args(how)
            .arg(patch)
            .current_dir(self.tree.folder());
        // In a folder of a repository git would leave out the files outside of that folder.
        git.env("GIT_CEILING_DIRECTORIES", &self.folder);
        let ended = kept(&mut git, STOP).await?;
        ensure!(ended.passed, "it does not apply: {}", ended.output);
        Ok(())
    }

    async fn build(&self, judge: &Judge) -> anyhow::Result<()> {
        let mut build = match judge {
            Judge::Simulation(_) => self.cargo("build", &simulate::PROGRAM),
            Judge::WholeStack(_) => self.cargo("build", &simulate::WHOLE_STACK),
            Judge::Test(_) => self.cargo("test", &TESTS),
        };
        if let Judge::Test(_) = judge {
            build.arg("--no-run");
        }
        let ended = kept(&mut build, STOP).await?;
        ensure!(ended.passed, "it does not compile:\n{}", ended.output);
        Ok(())
    }

    /// What it finds, if it finds something.
    async fn judge(&self, judge: &Judge) -> anyhow::Result<Option<String>> {
        let mut command = match judge {
            Judge::Simulation(_) => self.cargo("run", &simulate::PROGRAM),
            Judge::WholeStack(_) => self.cargo("run", &simulate::WHOLE_STACK),
            Judge::Test(_) => self.cargo("test", &TESTS),
        };
        match judge {
            Judge::Simulation(seeds) => command.args(["--", "--brief", "--seeds"]).arg(seeds.to_string()),
            Judge::WholeStack(seeds) => command.args(["--", "--seeds"]).arg(seeds.to_string()),
            Judge::Test(name) => command.arg(name),
        };
        found(judge, &kept_within(PROGRAM_LIMIT, &mut command, STOP).await?)
    }

    fn cargo(&self, verb: &str, what: &[&str]) -> Command {
        let mut command = cargo([verb, "--quiet", "--release"]);
        command.args(what).current_dir(self.tree.folder());
        // A flaw changes a few functions of one crate.
        command.env("CARGO_INCREMENTAL", "1");
        command.env("CARGO_TARGET_DIR", self.folder.join("target"));
        command
    }
}

/// What a judge that has ended says of a flaw.
fn found(judge: &Judge, ended: &Ended) -> anyhow::Result<Option<String>> {
    let Ended { passed, output } = ended;
    let line = match judge {
        Judge::Simulation(_) | Judge::WholeStack(_) => output.lines().find(|line| line.starts_with("seed ")),
        Judge::Test(name) => {
            ensure!(
                !passed || output.contains("test result: ok. 1 passed"),
                "no test is called {name}"
            );
            output.contains("test result: FAILED").then_some(&**name)
        }
    };
    if *passed {
        return Ok(None);
    }
    let line = line.with_context(|| format!("the judge fails otherwise:\n{output}"))?;
    Ok(Some(line.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::top;

    #[test]
    fn a_patch_names_its_judge_before_its_changes() {
        let judged = |lines: &str| head(&format!("Nothing is released.\n{lines}\n\ndiff --git a/x b/x\n"));
        assert_eq!(
            judged("judge: simulation 2000\nfinds: two are inside").unwrap(),
            (Judge::Simulation(2000), "two are inside".to_owned())
        );
        let name = || "some_name".to_owned();
        assert_eq!(
            judged("judge: test some_name").unwrap(),
            (Judge::Test(name()), name())
        );
        assert_eq!(
            judged("judge: whole-stack 300\nfinds: exclusion").unwrap().0,
            Judge::WholeStack(300)
        );
        assert!(judged("judge: somebody").is_err());
        assert!(judged("judge: simulation 2000").is_err());
        assert!(head("A flaw.\n\ndiff --git a/x b/x\njudge: simulation 1\nfinds: it\n").is_err());
    }

    #[test]
    fn all_patches_name_a_judge_and_apply() {
        let flaws = read(&top().join(PATCHES)).unwrap();
        assert!(!flaws.is_empty());
        for flaw in flaws {
            let mut git = std::process::Command::new("git");
            git.args(["apply", "--check"]).arg(&flaw.patch).current_dir(top());
            assert!(git.status().unwrap().success(), "{} does not apply", flaw.name);
        }
    }

    #[test]
    fn a_judge_finds_a_flaw_only_in_its_own_words() {
        let ended = |passed, output: &str| Ended {
            passed,
            output: output.to_owned(),
        };
        let simulation = Judge::Simulation(9);
        let said = "9 schedules\nseed 4: a and b are inside\nexit status: 1\n";
        let found_it = found(&simulation, &ended(false, said)).unwrap();
        assert_eq!(found_it.unwrap(), "seed 4: a and b are inside");
        assert_eq!(found(&simulation, &ended(true, "9 schedules")).unwrap(), None);
        assert!(found(&simulation, &ended(false, "signal: 9")).is_err());
        let test = Judge::Test("name".to_owned());
        let result = |words: &str| format!("test result: {words}; 0 ignored\n");
        assert_eq!(
            found(&test, &ended(false, &result("FAILED. 0 passed; 1 failed")))
                .unwrap()
                .unwrap(),
            "name"
        );
        assert_eq!(
            found(&test, &ended(true, &result("ok. 1 passed; 0 failed"))).unwrap(),
            None
        );
        assert!(found(&test, &ended(true, &result("ok. 0 passed; 0 failed"))).is_err());
        assert!(found(&test, &ended(false, "it does not link")).is_err());
    }
}
