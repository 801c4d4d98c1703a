//! Finding the servers' programs and reading their versions.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Servers often lie outside an ordinary user's PATH.
const SYSTEM_FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/sbin"];

/// A version as a server's `--version` prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl Version {
    /// The first number with a point in the output of `--version`, or the first number at all where a
    /// test version of PostgreSQL has none (`17beta1`).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            text[..end].parse::<u32>().ok()
        };
        let mut candidates = text.split_whitespace().filter(|word| number(word).is_some());
        let word = candidates
            .clone()
            .find(|word| word.contains('.'))
            .or_else(|| candidates.next())?;
        let minor = word
            .split_once('.')
            .and_then(|(_, rest)| number(rest))
            .unwrap_or(0);
        Some(Self {
            major: number(word)?,
            minor,
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The output of `program --version`.
pub(crate) fn version_text(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The program of that name in PATH or in one of the system's folders.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    in_folders(name, folders(&path))
}

/// The folders that [`in_path`] looks through, for a PATH.
pub(crate) fn folders(path: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path)
        .chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
        .collect()
}

/// The first executable file of that name in `folders`.
pub(crate) fn in_folders(name: &str, folders: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    folders.into_iter().map(|folder| folder.join(name)).find(|file| {
        fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    })
}

/// `parent/<version>/bin` for every version, the newest first: Debian keeps each version of PostgreSQL
/// in a folder of its own and out of PATH.
pub(crate) fn versioned_folders(parent: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut found: Vec<(Version, PathBuf)> = names
        .filter_map(|path| Some((Version::parse(path.file_name()?.to_str()?)?, path.join("bin"))))
        .collect();
    found.sort_by_key(|(version, _)| Reverse(*version));
    found.into_iter().map(|(_, bin)| bin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_servers_print() {
        for (text, major, minor) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", 15, 18),
            ("postgres (PostgreSQL) 9.6.24", 9, 6),
            ("postgres (PostgreSQL) 18beta2", 18, 0),
            (
                "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)",
                10,
                11,
            ),
            (
                "/usr/sbin/mysqld  Ver 8.0.36 for Linux on x86_64 (MySQL Community Server - GPL)",
                8,
                0,
            ),
            ("16", 16, 0),
        ] {
            assert_eq!(Version::parse(text), Some(Version { major, minor }), "{text}");
        }
        assert_eq!(Version::parse("no version here"), None);
    }

    #[test]
    fn the_newest_version_comes_first_by_number() {
        let parent = tempfile::tempdir().unwrap();
        for version in ["9.6", "15", "13", "common"] {
            fs::create_dir_all(parent.path().join(version).join("bin")).unwrap();
        }
        let expected = ["15/bin", "13/bin", "9.6/bin"].map(|bin| parent.path().join(bin));
        assert_eq!(versioned_folders(parent.path()), expected);
    }

    #[test]
    fn only_executable_files_are_programs() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("mariadbd");
        let find = || in_folders("mariadbd", [folder.path().to_owned()]);
        assert_eq!(find(), None);
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find(), None);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(), Some(program.clone()));
    }
}
