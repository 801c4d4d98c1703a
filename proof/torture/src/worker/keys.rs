//! The keys that are fought for.

use fastrand::Rng;

use crate::bank::ACCOUNTS;

/// Keys of sections that write to the fenced resource or to nothing; the accounts have keys of their own. The
/// first is asked for as often as all the others.
pub(crate) const KEYS: usize = 6;

/// The key of sections that live on renewals, one process after the other.
pub(super) const LONG: &str = "long";

/// The key of a job that every process tries to do, and one does.
pub(super) const JOB: &str = "job";

/// All keys, the accounts' with them.
pub(crate) fn key_names() -> Vec<String> {
    let keys = (0..KEYS).map(key_name);
    let accounts = (0..ACCOUNTS).map(account_key);
    keys.chain(accounts)
        .chain([LONG, JOB].map(str::to_owned))
        .collect()
}

pub(super) fn key_name(number: usize) -> String {
    format!("key{number}")
}

pub(super) fn account_key(account: i32) -> String {
    format!("account{account}")
}

/// A key of an outermost call.
pub(super) fn any_key(rng: &mut Rng, keys: usize) -> String {
    key_name(if rng.bool() { 0 } else { rng.usize(..keys) })
}
