//! A key is kept whole or refused.
#![no_main]

use dblock::Key;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Option<&str>, &str)| {
    let (namespace, key) = input;
    if let Ok(made) = Key::new(namespace, key) {
        let whole = namespace.map_or(key.to_owned(), |namespace| format!("{namespace}:{key}"));
        assert_eq!(made.as_str(), whole);
        assert!(!key.is_empty() && !key.contains('\0') && whole.len() <= 255);
    }
});
