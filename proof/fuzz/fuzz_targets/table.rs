//! Only plain words become part of SQL text.
#![no_main]

use dblock::open;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|name: &str| {
    let options = "postgres://nobody@127.0.0.1:1/none".parse().expect("a URL");
    if open::postgres::open(options, name).is_ok() {
        let plain = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        assert!(
            name.split('.').count() <= 2 && name.split('.').all(plain),
            "{name:?}"
        );
    }
});
