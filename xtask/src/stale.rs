//! What cargo must forget before it verifies the packages.
//!
//! `cargo package` builds `dblock` against `dblock-macros` from a registry that it makes in the target folder.
//! Cargo takes a version of a registry for immutable: it neither unpacks nor compiles the same version again,
//! and would verify against the `dblock-macros` of an earlier run.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

const CRATE: &str = "dblock-macros-";

/// Removes what is unpacked and compiled of `dblock-macros` from cargo's caches.
pub(crate) fn forget(cargo_home: &Path, target: &Path) -> anyhow::Result<()> {
    // Registries without a host, such as the one in the target folder, have a name that begins with "-".
    for registry in entries(&cargo_home.join("registry/src"), "-") {
        remove_entries(&registry, CRATE)?;
    }
    remove_entries(&target.join("debug/.fingerprint"), CRATE)
}

fn remove_entries(folder: &Path, prefix: &str) -> anyhow::Result<()> {
    for entry in entries(folder, prefix) {
        fs::remove_dir_all(&entry).with_context(|| format!("cannot remove {}", entry.display()))?;
    }
    Ok(())
}

/// What is in `folder` and has a name that begins with `prefix`; nothing where there is no such folder.
fn entries(folder: &Path, prefix: &str) -> Vec<std::path::PathBuf> {
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
    fn only_our_crate_of_local_registries_is_forgotten() {
        let top = tempfile::tempdir().unwrap();
        let (home, target) = (top.path().join("home"), top.path().join("target"));
        forget(&home, &target).unwrap();

        let goes = [
            home.join("registry/src/-0123/dblock-macros-0.1.0"),
            target.join("debug/.fingerprint/dblock-macros-4567"),
        ];
        let stays = [
            home.join("registry/src/-0123/other-0.1.0"),
            home.join("registry/src/index.crates.io-89ab/dblock-macros-0.1.0"),
            target.join("debug/.fingerprint/dblock-cdef"),
        ];
        for folder in goes.iter().chain(&stays) {
            std::fs::create_dir_all(folder.join("src")).unwrap();
        }
        forget(&home, &target).unwrap();
        assert!(goes.iter().all(|folder| !folder.exists()));
        assert!(stays.iter().all(|folder| folder.exists()));
    }
}
