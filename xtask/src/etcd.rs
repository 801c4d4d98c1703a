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
