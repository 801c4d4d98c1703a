//! The public API of dblock as a text, an item a line, so that a change of it shows in the diff of a commit.
//!
//! It is read from the JSON of rustdoc, which stable compilers write when they are told that they may.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::command::{Way, cargo, top};
use crate::steps::target_folder;

/// The part that is published with a promise: not the suite for stores, nor the simulation.
pub(crate) const FEATURES: &str = "macros,mysql,postgres,run_once,sqlite";

/// Where the text is, from the top of the workspace.
const LISTING: &str = "docs/public-api/dblock.txt";

/// Writes the text instead of comparing it.
const UPDATE: &str = "DBLOCK_UPDATE_API";

/// Fails when the API is not the one that is written down.
pub(crate) async fn check(way: Way) -> anyhow::Result<()> {
    let now = listing(way).await?;
    let path = top().join(LISTING);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::create_dir_all(path.parent().context("it is in a folder")?)?;
        return std::fs::write(&path, now).context(LISTING);
    }
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let changes = changes(&before, &now);
    if !changes.is_empty() {
        bail!(
            "the public API is not that of {LISTING}:\n{changes}if it is meant: {UPDATE}=1 cargo xtask test --only api"
        );
    }
    Ok(())
}

/// The API, a line for each item.
async fn listing(way: Way) -> anyhow::Result<String> {
    // For rustdoc alone: cargo would build every dependency anew if it saw the variable.
    let folder = tempfile::tempdir()?;
    let rustdoc = folder.path().join("rustdoc");
    std::fs::write(&rustdoc, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    std::fs::set_permissions(&rustdoc, std::fs::Permissions::from_mode(0o755))?;
    let mut command = cargo(["rustdoc", "-q", "-p", "dblock", "--lib", "--features", FEATURES]);
    command.args([
        "--",
        "-Z",
        "unstable-options",
        "--output-format",
        "json",
        "--cap-lints",
        "allow",
    ]);
    way.run(command.env("RUSTDOC", &rustdoc)).await?;
    read(&target_folder().await?.join("doc/dblock.json"))
}

fn read(json: &Path) -> anyhow::Result<String> {
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build();
    Ok(api
        .context("this compiler writes another JSON than public-api reads")?
        .to_string())
}

/// The lines that only one of them has.
fn changes(before: &str, now: &str) -> String {
    let missing = |from: &str, sign: char, to: &str| {
        let lines = from
            .lines()
            .filter(|line| !to.lines().any(|other| other == *line));
        lines.fold(String::new(), |text, line| text + &format!("{sign} {line}\n"))
    };
    missing(before, '-', now) + &missing(now, '+', before)
}

#[cfg(test)]
mod tests {
    use super::changes;

    #[test]
    fn only_what_differs_is_told() {
        assert_eq!(changes("a\nb\n", "a\nb\n"), "");
        assert_eq!(changes("a\nb\n", "b\nc\n"), "- a\n+ c\n");
    }
}
