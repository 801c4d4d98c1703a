//! The crates as they would be published.
//!
//! Cargo packs them, and their packages are unpacked as members of a workspace, in which they depend on each
//! other by version. `cargo package` could verify them too, but it would build everything that they depend
//! on, for each of them. Here the target folder, the versions, the profiles and the features are those of
//! the step that makes the documentation, which has checked most of it. That a crate lacks a feature which
//! another one turns on is found by `cargo publish`, which builds each alone.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tokio::process::Command;

use crate::command::{Way, cargo, top};
use crate::etcd;
use crate::steps::{FEATURES, target_folder};

/// What is published and has an API.
const LIBRARIES: [&str; 14] = [
    "dblock-core",
    "dblock-macros",
    "dblock",
    "dblock-axum",
    "dblock-tower",
    "dblock-conformance",
    "dblock-etcd",
    "dblock-redis",
    "dblock-sharded",
    "dblock-zookeeper",
    "dblock-tokio-postgres",
    "dblock-sea-orm",
    "dblock-diesel-async",
    "dblock-web",
];

/// What is published beside them: the command.
const COMMAND: &str = "dblock-cli";

/// All our crates have one version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The workspaces of their own, whose commands are not among the checks. Their lock files name our crates' dependencies.
const WORKSPACES: [&str; 3] = ["examples/recipes", "proof/benches", "proof/fuzz"];

pub(crate) async fn verify(way: Way) -> anyhow::Result<()> {
    for workspace in WORKSPACES {
        // Fails where the lock file would change.
        let mut locked = cargo(["update", "--workspace", "--locked", "--manifest-path"]);
        way.run(locked.arg(format!("{workspace}/Cargo.toml"))).await?;
    }
    let target = target_folder().await?;
    let workspace = packed(way, &target.join("packages")).await?;
    fs::copy(top().join("Cargo.lock"), workspace.join("Cargo.lock"))?;
    check(way, &workspace, &target).await
}

/// The crates compile with the oldest versions that their manifests allow of what they depend on.
pub(crate) async fn minimal(way: Way) -> anyhow::Result<()> {
    let folder = target_folder().await?.join("minimal");
    let workspace = packed(way, &folder).await?;
    let mut update = cargo(["update", "-Z", "direct-minimal-versions", "--manifest-path"]);
    update.arg(workspace.join("Cargo.toml"));
    // A stable cargo has the option, too, when it is told that it may.
    way.run(update.env("RUSTC_BOOTSTRAP", "1")).await?;
    check(way, &workspace, &folder.join("target")).await
}

/// The libraries that can be built here.
pub(crate) fn libraries() -> Vec<&'static str> {
    let left_out = etcd::left_out();
    let libraries = LIBRARIES.into_iter();
    libraries.filter(|name| !left_out.contains(name)).collect()
}

/// Packs all crates into `folder`, and makes a workspace of their packages.
async fn packed(way: Way, folder: &Path) -> anyhow::Result<PathBuf> {
    let crates = [&LIBRARIES[..], &[COMMAND]].concat();
    let mut pack = cargo(["package", "--no-verify", "--allow-dirty", "--target-dir"]);
    pack.arg(folder);
    way.run(pack.args(crates.iter().flat_map(|name| ["-p", name])))
        .await?;
    let workspace = folder.join("workspace");
    unpack(way, &folder.join("package"), &workspace, &crates).await?;
    Ok(workspace)
}

async fn check(way: Way, workspace: &Path, target: &Path) -> anyhow::Result<()> {
    let mut check = cargo(["check", "--workspace", "--features", FEATURES, "--manifest-path"]);
    check.arg(workspace.join("Cargo.toml"));
    check.arg("--target-dir").arg(target);
    let left_out = etcd::left_out().iter();
    way.run(check.args(left_out.flat_map(|name| ["--exclude", name])))
        .await
}

/// Makes a workspace of the packages in `packed`.
async fn unpack(way: Way, packed: &Path, workspace: &Path, crates: &[&str]) -> anyhow::Result<()> {
    if workspace.exists() {
        fs::remove_dir_all(workspace).with_context(|| workspace.display().to_string())?;
    }
    fs::create_dir_all(workspace)?;
    for name in crates {
        let mut tar = Command::new("tar");
        // `m`: the files of a package are old, and cargo would take them for those that it has checked
        // before.
        tar.arg("-xzmf")
            .arg(packed.join(format!("{name}-{VERSION}.crate")));
        way.run(tar.arg("-C").arg(workspace)).await?;
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let packed = workspace.join(format!("{name}-{VERSION}")).join(licence);
            let same = fs::read(&packed).ok() == Some(fs::read(top().join(licence))?);
            anyhow::ensure!(same, "{name} has no copy of our {licence}");
        }
    }
    let ours = fs::read_to_string(top().join("Cargo.toml"))?;
    fs::write(workspace.join("Cargo.toml"), manifest(&ours, crates)?)?;
    Ok(())
}

/// The manifest of the workspace of packages. `ours` is that of our workspace, at whose end are the profiles.
fn manifest(ours: &str, crates: &[&str]) -> anyhow::Result<String> {
    let profiles = ours.find("\n[profile").context("Cargo.toml has profiles")?;
    let mut text = "[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n\n[patch.crates-io]\n".to_owned();
    for name in crates {
        writeln!(text, "{name} = {{ path = \"{name}-{VERSION}\" }}")?;
    }
    Ok(text + &ours[profiles..])
}

#[cfg(test)]
mod tests {
    use super::manifest;

    #[test]
    fn packages_find_each_other_and_have_our_profiles() {
        let ours = "[workspace]\nmembers = [\"x\"]\n\n[profile.dev]\ndebug = 0\n\n[profile.other]\n";
        let text = manifest(ours, &["one", "two"]).unwrap();
        let expected = format!(
            "[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n\n[patch.crates-io]\n\
             one = {{ path = \"one-{0}\" }}\ntwo = {{ path = \"two-{0}\" }}\n\n\
             [profile.dev]\ndebug = 0\n\n[profile.other]\n",
            super::VERSION
        );
        assert_eq!(text, expected);
        assert!(manifest("[workspace]", &[]).is_err());
    }
}
