//! Whether `dblock-etcd` takes part: its build needs `protoc`. Its servers are left out as those of others
//! are.

use dblock_servers::etcd;

const NAME: &str = "dblock-etcd";

/// The crates that cannot be built here.
pub(crate) fn left_out() -> &'static [&'static str] {
    if etcd::missing_compiler().is_empty() {
        &[]
    } else {
        &[NAME]
    }
}

/// It has a step of its own.
pub(crate) const MODEL: &str = "dblock-model";

/// The words that make cargo take all crates that can be built here but the [model](MODEL), and etcd with TLS and in the torture, if it
/// can.
pub(crate) fn workspace() -> Vec<&'static str> {
    let left_out = left_out();
    let mut words = vec!["--workspace", "--exclude", MODEL];
    words.extend(left_out.iter().flat_map(|name| ["--exclude", name]));
    if left_out.is_empty() {
        words.extend(["--features", "dblock-etcd/tls-rustls,dblock-torture/etcd"]);
    }
    words
}
