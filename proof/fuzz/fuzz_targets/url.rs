//! A URL is read, or refused in words that do not repeat it.
#![no_main]

use dblock::{LockError, LockManager};
use libfuzzer_sys::fuzz_target;

/// No fuzzer writes it by chance.
const SECRET: &str = "S3cretOfNobody";

fuzz_target!(|input: (&str, &str)| {
    let (before, after) = input;
    for url in [
        format!("{before}{after}"),
        format!("postgres://u:{SECRET}{after}"),
    ] {
        if let Err(error) = LockManager::builder_for_url(&url) {
            assert!(matches!(error, LockError::Invalid { .. }));
            assert!(
                !format!("{error} {error:?}").contains(SECRET),
                "{error} for {url:?}"
            );
        }
    }
});
