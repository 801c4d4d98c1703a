//! Whether `dblock-etcd` takes part: its build needs `protoc`. Its servers are left out as those of others
//! are.

use dblock_servers::etcd;
use tokio::sync::OnceCell;

const NAME: &str = "dblock-etcd";

/// The crates that cannot be built here. A missing tool is installed first, where we may.
///
/// # Errors
/// In CI none may be left out.
pub(crate) async fn left_out() -> anyhow::Result<&'static [&'static str]> {
    static FOUND: OnceCell<bool> = OnceCell::const_new();
    let found = FOUND.get_or_try_init(|| async {
        match etcd::install_compiler().await {
            Ok(()) => Ok(true),
            Err(error) if std::env::var_os("CI").is_none() => {
                anstream::eprintln!("\x1b[1;33m{NAME} is LEFT OUT: protoc is not here, and cannot be installed\x1b[0m: {error:#}");
                Ok(false)
            }
            Err(error) => Err(error.context("protoc cannot be installed")),
        }
    });
    Ok(if *found.await? { &[] } else { &[NAME] })
}

/// The words that make cargo take all crates that can be built here, and the torture with etcd, if it can.
///
/// # Errors
/// As for [`left_out`].
pub(crate) async fn workspace() -> anyhow::Result<Vec<&'static str>> {
    let left_out = left_out().await?;
    let mut words = vec!["--workspace"];
    words.extend(left_out.iter().flat_map(|name| ["--exclude", name]));
    if left_out.is_empty() {
        words.extend(["--features", "dblock-torture/etcd"]);
    }
    Ok(words)
}
