//! The library's messages tell programmers what to call. A user of this program is told what to run.

use crate::cli::{DEFAULT_TABLE, StoreArguments};

/// The library's words, and this program's. Those that contain others come first.
const WORDS: [(&str, &str); 16] = [
    (
        "turn on the feature `tls-rustls` or `tls-native-tls` of dblock",
        "install this program again: cargo install --path apps/cli --features tls-rustls",
    ),
    (
        "build the manager with `auto_migrate(true)`, call `locks.admin().migrate()` on one from `LockManagerBuilder::build_lazy`, or \
         run",
        "run `dblock migrate`, or",
    ),
    (
        "call `locks.admin().migrate()`, build the manager with `auto_migrate(true)`, or run",
        "run `dblock migrate`, or",
    ),
    ("call `locks.admin().migrate()`", "run `dblock migrate`"),
    (
        "`dblock migrate`, or `locks.admin().migrate()`",
        "`dblock migrate`",
    ),
    ("`locks.admin().migrate()`", "`dblock migrate`"),
    (
        "call `Admin::resolve`",
        "run `dblock records resolve`, with --run-again or --succeeded",
    ),
    (
        "upgrade the dblock crate",
        "install a newer version of this program",
    ),
    ("in the builder's `table`", "by --table"),
    (
        "; use MySQL or MariaDB, or if you know better, `LockManagerBuilder::trust_any_server`",
        "; use MySQL or MariaDB",
    ),
    // The URL's `mode` may be this program's own.
    (
        "it is not there and was not made, either because this process may not write to the directory, or because of \
         `mode=rw` in the URL or of a pool without `create_if_missing(true)`",
        "it is not there, and was not made: only `run` and `migrate` make a file, in a directory that they may write to",
    ),
    (
        "; use a file, such as sqlite://locks.db, or the memory store, memory:",
        "; use a file, such as sqlite://locks.db",
    ),
    ("mariadb, sqlite or memory", "mariadb, sqlite, redis or valkey"),
    (
        "mariadb://…, sqlite://… or memory:",
        "mariadb://…, sqlite://… or redis://…",
    ),
    ("or see `LockManager::health`", "or see `dblock doctor`"),
    (
        "see `Admin::record` before you call it again",
        "see `dblock records show` before you run it again",
    ),
];

/// A message of the library, with the remedies of this program.
pub(crate) fn of_this_program(message: &str) -> String {
    let mut text = message.to_owned();
    for (library, program) in WORDS {
        text = text.replace(library, program);
    }
    text
}

/// The commands of a message, with the options that lead to the same tables and keys.
pub(crate) fn with_options(message: &str, store: &StoreArguments) -> String {
    let mut options = String::from("dblock");
    if store.table != DEFAULT_TABLE {
        options = format!("{options} --table {}", store.table);
    }
    let text = message.replace("dblock migrate", &format!("{options} migrate"));
    if let Some(namespace) = &store.namespace {
        options = format!("{options} --namespace {namespace}");
    }
    text.replace("dblock records", &format!("{options} records"))
}

#[cfg(test)]
mod tests {
    use dblock::LockManager;

    use super::of_this_program;

    #[test]
    fn what_is_contained_in_another_comes_later() {
        for (at, (library, _)) in super::WORDS.iter().enumerate() {
            let earlier = &super::WORDS[..at];
            let hides = earlier.iter().find(|(first, _)| library.contains(first));
            assert_eq!(hides, None, "{library}");
        }
    }

    #[test]
    fn a_url_is_not_answered_with_what_this_program_lacks() {
        for (url, lacks) in [
            ("no-scheme", "memory:"),
            ("oracle://db", "or memory"),
            ("sqlite::memory:", "memory:"),
        ] {
            let error = LockManager::builder_for_url(url).map(dblock::LockManagerBuilder::build_lazy);
            let error = error.and_then(|started| started).unwrap_err().to_string();
            assert!(error.contains(lacks), "the library says it: {error}");
            let told = of_this_program(&error);
            assert!(told.contains("sqlite") && !told.contains(lacks), "{told}");
        }
    }
}
