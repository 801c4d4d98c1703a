//! The durations of attributes: whatever stands there, the answer is within the limits, or an error.
#![no_main]

use dblock_core::duration;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for name in ["ttl", "wait"] {
        if let Ok(found) = duration::parse(name, text) {
            assert!(!found.is_zero() && found <= duration::MAX);
            assert!(name != "ttl" || found >= duration::MIN_TTL);
        }
    }
});
