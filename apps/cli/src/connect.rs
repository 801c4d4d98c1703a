//! From the arguments to a manager.

use std::sync::OnceLock;
use std::time::Duration;

use dblock::store::{StoreErrorKind, schemes};
use dblock::{LockError, LockManager, LockManagerBuilder};

use crate::cli::StoreArguments;
use crate::failure::{Code, Failure};

/// How often a connection is tried. The library gives each two seconds, which a busy server may need.
const TRIES: u32 = 3;

/// The answer to tables, or a SQLite file, that are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// As [`LockManager::connect`]: a SQLite file and its tables are created.
    AsTheLibrary,
    /// It is an error that says what to do.
    IsAnError,
}

impl StoreArguments {
    /// The key as it is looked up.
    pub(crate) fn whole(&self, key: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}:{key}"),
            None => key.to_owned(),
        }
    }

    /// The key as it is typed: that of which `key` is [the whole](Self::whole). This is what answers in JSON
    /// have, so that a program can give it to the next command.
    pub(crate) fn typed<'a>(&self, key: &'a str) -> &'a str {
        let namespace = self.namespace.as_deref();
        let typed = namespace.and_then(|namespace| key.strip_prefix(namespace)?.strip_prefix(':'));
        typed.unwrap_or(key)
    }
}

/// The manager of this program, which has one at most.
static MANAGER: OnceLock<LockManager> = OnceLock::new();

/// Ends the manager, if there is one: the last connection to a SQLite file removes the files beside it.
pub(crate) async fn close() {
    if let Some(locks) = MANAGER.get() {
        locks.shutdown(Duration::ZERO).await;
    }
}

/// A manager that has asked the database nothing yet.
pub(crate) fn lazy_manager(arguments: &StoreArguments, missing: Missing) -> Result<LockManager, Failure> {
    let locks = builder(arguments, missing)?.auto_migrate(false).build_lazy()?;
    Ok(MANAGER.get_or_init(|| locks).clone())
}

/// A manager whose tables are there.
pub(crate) async fn manager(arguments: &StoreArguments, missing: Missing) -> Result<LockManager, Failure> {
    let mut tries = 1..TRIES;
    loop {
        let builder = builder(arguments, missing)?;
        let builder = match missing {
            Missing::AsTheLibrary => builder,
            Missing::IsAnError => builder.auto_migrate(false),
        };
        match builder.build().await {
            Err(LockError::Store { source, .. })
                if source.kind() == StoreErrorKind::Unreachable && tries.next().is_some() => {}
            Ok(locks) => return Ok(MANAGER.get_or_init(|| locks).clone()),
            Err(error) => return Err(explained(arguments, error.into())),
        }
    }
}

/// Adds what to do about a SQLite file that is not there.
pub(crate) fn explained(arguments: &StoreArguments, failure: Failure) -> Failure {
    let url = arguments.url.as_deref().unwrap_or_default();
    if failure.code == Code::Unavailable && url.starts_with("sqlite:") {
        return failure.with_remedy("if it is to be a new file: dblock migrate");
    }
    failure
}

/// The settings that the arguments give. It asks the database nothing.
fn builder(arguments: &StoreArguments, missing: Missing) -> Result<LockManagerBuilder, Failure> {
    let url = arguments.url.as_deref().unwrap_or_default();
    if url.is_empty() {
        let message = "which database? Give its URL in the variable DATABASE_URL, or by --url";
        return Err(Failure::new(Code::Usage, message));
    }
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    if scheme.eq_ignore_ascii_case("memory") {
        let message = "locks in memory are this process's alone, so nobody else would see them; give the URL of a \
                       database, such as sqlite://locks.db";
        return Err(Failure::new(Code::Usage, message));
    }
    check_compiled_in(scheme)?;
    let url = match missing {
        Missing::IsAnError if scheme.eq_ignore_ascii_case("sqlite") => existing_file(url),
        _ => url.to_owned(),
    };
    register_stores();
    let mut builder = LockManager::builder_for_url(&url)?;
    builder = builder.table(&arguments.table);
    // A command is over long before a purge in the background would be of use.
    builder = builder.purge_after(None);
    if let Some(namespace) = &arguments.namespace {
        builder = builder.namespace(namespace);
    }
    Ok(builder)
}

/// Has the library open the URLs of all stores that this program has.
fn register_stores() {
    #[cfg(feature = "redis")]
    dblock_redis::register();
    #[cfg(feature = "zookeeper")]
    dblock_zookeeper::register();
    #[cfg(feature = "etcd")]
    dblock_etcd::register();
}

/// The library's message is about `Cargo.toml`, which a user of this program does not have.
fn check_compiled_in(scheme: &str) -> Result<(), Failure> {
    let (store, has_it) = match &*schemes::protocol(scheme) {
        "postgres" | "postgresql" => ("postgres", cfg!(feature = "postgres")),
        "mysql" | "mariadb" => ("mysql", cfg!(feature = "mysql")),
        "sqlite" => ("sqlite", cfg!(feature = "sqlite")),
        "redis" | "rediss" | "valkey" | "valkeys" => ("redis", cfg!(feature = "redis")),
        "zookeeper" => ("zookeeper", cfg!(feature = "zookeeper")),
        "etcd" | "etcds" => ("etcd", cfg!(feature = "etcd")),
        // The library says which schemes there are.
        _ => return Ok(()),
    };
    if has_it {
        return Ok(());
    }
    let message = format!(
        "this program was built without the {store} store; build it again: cargo install --path apps/cli --features {store}"
    );
    Err(Failure::new(Code::Usage, message))
}

/// The URL of a SQLite file that must be there: a look at a mistyped name must not create a file.
fn existing_file(url: &str) -> String {
    if url.contains("mode=") {
        return url.to_owned();
    }
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}mode=rw")
}

#[cfg(test)]
mod tests {
    use super::existing_file;

    #[test]
    fn a_file_that_is_not_there_is_not_created() {
        for (given, asked) in [
            ("sqlite://a.db", "sqlite://a.db?mode=rw"),
            ("sqlite://a.db?x=1", "sqlite://a.db?x=1&mode=rw"),
            ("sqlite://a.db?mode=ro", "sqlite://a.db?mode=ro"),
        ] {
            assert_eq!(existing_file(given), asked);
        }
    }
}
