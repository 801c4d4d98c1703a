//! The public API of each published crate as a text, an item a line, so that a change of it shows in the diff
//! of a commit.
//!
//! It is read from the JSON of rustdoc, which stable compilers write when they are told that they may.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::command::{Way, cargo, top};
use crate::package;
use crate::steps::{FEATURES, target_folder};

/// Where the texts are, from the top of the workspace: one for each crate.
const LISTINGS: &str = "docs/public-api";

/// Writes the texts instead of comparing them.
const UPDATE: &str = "DBLOCK_UPDATE_API";

/// Fails when the API of a crate is not the one that is written down.
pub(crate) async fn check(way: Way) -> anyhow::Result<()> {
    let crates = package::crates();
    document(way, &crates).await?;
    let documents = target_folder().await?.join("doc");
    let folder = top().join(LISTINGS);
    let update = std::env::var_os(UPDATE).is_some();
    let mut told = String::new();
    for name in crates {
        let now = read(&documents.join(format!("{}.json", name.replace('-', "_"))))?;
        let now = if name == "dblock" {
            now
        } else {
            without_private_modules(&now)
        };
        let listing = folder.join(format!("{name}.txt"));
        if update {
            std::fs::write(&listing, now).with_context(|| listing.display().to_string())?;
            continue;
        }
        let before = std::fs::read_to_string(&listing).unwrap_or_default();
        let changes = changes(&before, &now);
        if !changes.is_empty() {
            writeln!(
                told,
                "the public API of {name} is not that of {LISTINGS}/{name}.txt:\n{changes}"
            )?;
        }
    }
    if told.is_empty() {
        return Ok(());
    }
    bail!("{told}if it is meant: {UPDATE}=1 cargo xtask test --only api")
}

/// Has rustdoc write the JSON of the crates, with all that their features add. TLS adds nothing.
async fn document(way: Way, crates: &[&str]) -> anyhow::Result<()> {
    // For rustdoc alone: cargo would build every dependency anew if it saw the variable.
    let folder = tempfile::tempdir()?;
    let rustdoc = folder.path().join("rustdoc");
    std::fs::write(&rustdoc, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    std::fs::set_permissions(&rustdoc, std::fs::Permissions::from_mode(0o755))?;
    let mut command = cargo(["doc", "-q", "--no-deps", "--lib", "--features", FEATURES]);
    command.args(crates.iter().flat_map(|name| ["-p", name]));
    command.env(
        "RUSTDOCFLAGS",
        "-Z unstable-options --output-format json --cap-lints allow",
    );
    way.run(command.env("RUSTDOC", &rustdoc)).await
}

/// The API, a line for each item, without the traits that are derived.
fn read(json: &Path) -> anyhow::Result<String> {
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    Ok(api
        .context("this compiler writes another JSON than public-api reads")?
        .to_string())
}

/// The types of `dblock` by their names alone: for another crate rustdoc names the module that has a type,
/// which may be private and move.
fn without_private_modules(api: &str) -> String {
    let mut shown = String::new();
    let mut rest = api;
    while let Some((before, path)) = rest.split_once("dblock::") {
        let end = path.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | ':'));
        let (path, after) = path.split_at(end.unwrap_or(path.len()));
        let modules = path
            .split("::")
            .take_while(|part| part.starts_with(char::is_lowercase));
        let length: usize = modules.map(|part| part.len() + "::".len()).sum();
        shown.extend([before, "dblock::", path.get(length..).unwrap_or(path)]);
        rest = after;
    }
    shown + rest
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
    use super::{changes, without_private_modules};

    #[test]
    fn only_what_differs_is_told() {
        assert_eq!(changes("a\nb\n", "a\nb\n"), "");
        assert_eq!(changes("a\nb\n", "b\nc\n"), "- a\n+ c\n");
    }

    #[test]
    fn where_a_type_of_another_crate_is_does_not_matter() {
        for (of_rustdoc, shown) in [
            ("a(dblock::store::row::LockRow) -> b", "a(dblock::LockRow) -> b"),
            (
                "dblock::store::StoreSource::from(a)",
                "dblock::StoreSource::from(a)",
            ),
            ("dblock::fence::begin", "dblock::fence::begin"),
            ("dblock_redis::RedisStore", "dblock_redis::RedisStore"),
        ] {
            assert_eq!(without_private_modules(of_rustdoc), shown);
        }
    }
}
