//! The environment of tests: the servers, where their files are, and how many run at once.

use std::num::NonZero;

use dblock_servers::Servers;

/// A folder in memory, where Linux has one: a commit to a disk may stall for seconds, which fails tests by
/// chance.
const MEMORY: &str = "/dev/shm";

/// Far more bytes than the tests' files have.
#[cfg(target_os = "linux")]
const ROOM: u64 = 4 << 30;

/// How many tests of a program run at once, at least: most of a test is waiting for a lease to end, or to be
/// renewed.
const AT_ONCE: usize = 4;

/// The variables for the tests, and their values.
pub(crate) fn variables(servers: &Servers) -> Vec<(String, String)> {
    let urls = servers.variables();
    let mut variables: Vec<_> = urls
        .map(|(name, url)| (name.to_owned(), url.to_owned()))
        .collect();
    let mut set = |name: &str, value: String| variables.push((name.to_owned(), value));
    // A test that finds no server fails then, instead of being left out.
    if servers.left_out().is_empty() {
        set("DBLOCK_TEST_REQUIRE_SERVERS", "1".to_owned());
    }
    if memory_has_room() {
        set("TMPDIR", MEMORY.to_owned());
    }
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    if processors < AT_ONCE && std::env::var_os("RUST_TEST_THREADS").is_none() {
        set("RUST_TEST_THREADS", AT_ONCE.to_string());
    }
    variables
}

/// Whether the tests' files, such as SQLite's, may be in memory. Test programs are built and run there, too.
#[cfg(target_os = "linux")]
fn memory_has_room() -> bool {
    use rustix::fs::{StatVfsMountFlags, statvfs};

    statvfs(MEMORY)
        .is_ok_and(|at| at.f_bavail * at.f_frsize >= ROOM && !at.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

#[cfg(not(target_os = "linux"))]
fn memory_has_room() -> bool {
    false
}
