//! The keys.

use fastrand::Rng;

use crate::bank::ACCOUNTS;

/// How many keys there are besides those of the accounts and of special tasks. The first is asked for as often as
/// all the others together.
pub(crate) const KEYS: usize = 6;

/// The key of sections that are longer than their lease, which is renewed.
pub(super) const LONG: &str = "long";

/// The key of a job that one process does; the others find it busy.
pub(super) const JOB: &str = "job";

/// The key of callers that share it without a limit, and of some that want it alone.
pub(super) const SHARED: &str = "shared";

/// The key that few callers share at once.
pub(super) const LIMITED: &str = "limited";

/// The key whose lock goes into tickets.
pub(crate) const TICKET: &str = "ticket";

/// All keys, with those of the accounts.
pub(crate) fn key_names() -> Vec<String> {
    let keys = (0..KEYS).map(key_name);
    let accounts = (0..ACCOUNTS).map(account_key);
    keys.chain(accounts)
        .chain([LONG, JOB, SHARED, LIMITED, TICKET].map(str::to_owned))
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
