//! The public API of each published crate as a text, an item a line, so that a change of it shows in the diff
//! of a commit.
//!
//! It is read from the JSON of rustdoc, which stable compilers write when they are told that they may.

use std::collections::BTreeMap;
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
    let crates = package::libraries();
    document(way, &crates).await?;
    let documents = target_folder().await?.join("doc");
    let folder = top().join(LISTINGS);
    let update = std::env::var_os(UPDATE).is_some();
    let mut told = String::new();
    let mut listings = Vec::new();
    let mut paths = Shown::new();
    for name in crates {
        let of_rustdoc = name.replace('-', "_");
        let listing = read(&documents.join(format!("{of_rustdoc}.json")))?;
        shown(&of_rustdoc, &listing, &mut paths);
        listings.push((name, listing));
    }
    for (name, now) in listings {
        let now = with_public_paths(&now, &paths);
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

/// The stores to whose API TLS adds something, beside those in [`FEATURES`]. Elsewhere it adds nothing.
const WITH_TLS: [&str; 1] = ["dblock-etcd"];

/// Has rustdoc write the JSON of the crates, with all that their features add.
async fn document(way: Way, crates: &[&str]) -> anyhow::Result<()> {
    // For rustdoc alone: cargo would build every dependency anew if it saw the variable.
    let folder = tempfile::tempdir()?;
    let rustdoc = folder.path().join("rustdoc");
    std::fs::write(&rustdoc, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    std::fs::set_permissions(&rustdoc, std::fs::Permissions::from_mode(0o755))?;
    let mut command = cargo(["doc", "-q", "--no-deps", "--lib", "--features", FEATURES]);
    command.args(crates.iter().flat_map(|name| ["-p", name]));
    for name in WITH_TLS.iter().filter(|name| crates.contains(name)) {
        command.args(["--features", &format!("{name}/tls-rustls")]);
    }
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

/// Where a crate shows its types, by the name of the crate and that of the type.
type Shown = BTreeMap<(String, String), String>;

/// The public paths of the types in the listing of `name`.
fn shown(name: &str, listing: &str, shown: &mut Shown) {
    const KINDS: [&str; 6] = ["enum ", "struct ", "trait ", "type ", "union ", "use "];
    let start = format!("{name}::");
    for line in listing.lines() {
        let Some((_, item)) = line.split_once("pub ") else {
            continue;
        };
        let item = item.strip_prefix("unsafe ").unwrap_or(item);
        let Some(item) = KINDS.iter().find_map(|kind| item.strip_prefix(kind)) else {
            continue;
        };
        let (path, _) = item.split_at(end_of_path(item));
        let Some((modules, of_type)) = path.rsplit_once("::") else {
            continue;
        };
        let in_a_module = modules
            .split("::")
            .all(|module| module.starts_with(char::is_lowercase));
        if path.starts_with(&start) && in_a_module {
            shown
                .entry((name.to_owned(), of_type.to_owned()))
                .and_modify(|known| {
                    if path.len() < known.len() {
                        path.clone_into(known);
                    }
                })
                .or_insert_with(|| path.to_owned());
        }
    }
}

fn end_of_path(text: &str) -> usize {
    let end = text.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | ':'));
    let path = text.split_at(end.unwrap_or(text.len())).0;
    // A bound may follow.
    path.trim_end_matches(':').len()
}

/// The types of `dblock` and `dblock_core` by their public paths: for another crate rustdoc names the module that has a
/// type, which may be private and move.
fn with_public_paths(api: &str, shown: &Shown) -> String {
    let mut text = String::new();
    let mut rest = api;
    while let Some(start) = rest.find("dblock") {
        let (before, from) = rest.split_at(start);
        let (path, after) = from.split_at(end_of_path(from));
        text += before;
        let parts: Vec<&str> = path.split("::").collect();
        let of_type = parts.iter().position(|part| part.starts_with(char::is_uppercase));
        let public = of_type.and_then(|at| Some((at, shown.get(&(parts[0].into(), parts[at].into()))?)));
        match public {
            Some((at, public)) => {
                text += public;
                for part in &parts[at + 1..] {
                    text.extend(["::", part]);
                }
            }
            None => text += path,
        }
        rest = after;
    }
    text + rest
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
    use super::{Shown, changes, shown, with_public_paths};

    #[test]
    fn only_what_differs_is_told() {
        assert_eq!(changes("a\nb\n", "a\nb\n"), "");
        assert_eq!(changes("a\nb\n", "b\nc\n"), "- a\n+ c\n");
    }

    #[test]
    fn where_a_type_of_another_crate_is_does_not_matter() {
        let mut paths = Shown::new();
        let core = "#[non_exhaustive] pub enum dblock_core::LockError\npub struct dblock_core::LockRow\n\
                    pub dblock_core::LockError::Busy::key: dblock_core::key::Key\n";
        shown("dblock_core", core, &mut paths);
        shown(
            "dblock",
            "pub use dblock::LockRow\npub trait dblock::fence::FenceConnection: core::marker::Send\n",
            &mut paths,
        );
        for (of_rustdoc, shown) in [
            (
                "a(&dblock_core::store::row::LockRow) -> b",
                "a(&dblock_core::LockRow) -> b",
            ),
            ("dblock::store::row::LockRow", "dblock::LockRow"),
            (
                "dblock::fence::connection::FenceConnection::run",
                "dblock::fence::FenceConnection::run",
            ),
            (
                "Result<a, dblock_core::error::LockError>",
                "Result<a, dblock_core::LockError>",
            ),
            ("dblock_core::key::Key", "dblock_core::key::Key"),
            ("dblock::fence::begin", "dblock::fence::begin"),
            ("dblock_redis::RedisStore", "dblock_redis::RedisStore"),
        ] {
            assert_eq!(with_public_paths(of_rustdoc, &paths), shown);
        }
    }
}
