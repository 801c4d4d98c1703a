//! The crates as they would be published.
//!
//! `cargo package` builds each against the ones before it from a registry that it makes in the target folder. Cargo
//! takes a version of a registry for immutable: it neither unpacks nor compiles the same version again, and would
//! verify against the crates of an earlier run. So it must forget them first; and it has a target folder of its own,
//! because forgetting them in ours would have the whole workspace built again.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::command::{Way, cargo, output};
use crate::etcd;
use crate::steps::{STORES, target_folder};

/// The names of our crates begin with this.
const OURS: &str = "dblock";

/// In the order in which they depend on each other.
const CRATES: [&str; 11] = [
    "dblock-macros",
    "dblock",
    "dblock-axum",
    "dblock-conformance",
    "dblock-etcd",
    "dblock-redis",
    "dblock-zookeeper",
    "dblock-tokio-postgres",
    "dblock-sea-orm",
    "dblock-diesel-async",
    "dblock-web",
];

pub(crate) async fn verify(way: Way) -> anyhow::Result<()> {
    let target = target_folder().await?.join("packages");
    forget(&cargo_home()?, &target)?;
    let mut command = cargo(["package", "--allow-dirty", "--target-dir"]);
    command.arg(&target);
    let left_out = etcd::left_out().await?;
    let crates = CRATES.iter().filter(|name| !left_out.contains(name));
    way.run(command.args(crates.flat_map(|name| ["-p", name])))
        .await?;
    // It is verified without stores, because all packages would have to have their features.
    let files = output(&mut cargo(["package", "-p", "dblock", "--allow-dirty", "--list"])).await?;
    for (store, _) in STORES {
        let folder = format!("migrations/{store}/");
        ensure!(files.contains(&folder), "{folder} is not in the package");
    }
    Ok(())
}

fn cargo_home() -> anyhow::Result<PathBuf> {
    let given = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    given
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")))
        .context("there is no home folder")
}

/// Removes what is unpacked and compiled of our crates from cargo's caches.
fn forget(cargo_home: &Path, target: &Path) -> anyhow::Result<()> {
    // Registries without a host, such as the one in the target folder, have a name that begins with "-".
    for registry in entries(&cargo_home.join("registry/src"), "-") {
        remove_entries(&registry, OURS)?;
    }
    remove_entries(&target.join("debug/.fingerprint"), OURS)
}

fn remove_entries(folder: &Path, prefix: &str) -> anyhow::Result<()> {
    for entry in entries(folder, prefix) {
        fs::remove_dir_all(&entry).with_context(|| format!("cannot remove {}", entry.display()))?;
    }
    Ok(())
}

/// The entries of `folder` whose names begin with `prefix`; none where there is no such folder.
fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let begins = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(prefix));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| begins(&entry.file_name()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::forget;

    #[test]
    fn only_our_crates_of_local_registries_are_forgotten() {
        let top = tempfile::tempdir().unwrap();
        let (home, target) = (top.path().join("home"), top.path().join("target"));
        forget(&home, &target).unwrap();

        let goes = [
            home.join("registry/src/-0123/dblock-macros-0.1.0"),
            home.join("registry/src/-0123/dblock-0.1.0"),
            target.join("debug/.fingerprint/dblock-macros-4567"),
        ];
        let stays = [
            home.join("registry/src/-0123/other-0.1.0"),
            home.join("registry/src/index.crates.io-89ab/dblock-macros-0.1.0"),
            target.join("debug/.fingerprint/other-cdef"),
        ];
        for folder in goes.iter().chain(&stays) {
            std::fs::create_dir_all(folder.join("src")).unwrap();
        }
        forget(&home, &target).unwrap();
        assert!(goes.iter().all(|folder| !folder.exists()));
        assert!(stays.iter().all(|folder| folder.exists()));
    }
}
