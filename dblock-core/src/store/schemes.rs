//! Stores of other crates, by the schemes of their URLs.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::Store;
use crate::LockError;

/// Makes a store of a URL. No error repeats the URL, because it may contain a password.
pub type Open = fn(&str) -> Result<Arc<dyn Store>, LockError>;

static OPENERS: RwLock<BTreeMap<&'static str, Open>> = RwLock::new(BTreeMap::new());

/// From now on URLs with these schemes are opened by `open`, wherever this process reads the URL of a store, such as in
/// `LockManager::connect`. A scheme is written in small letters. It stands for those that add something behind a `+` or
/// `-` too, as `redis` does for `redis+cluster`. The schemes of the databases and of `memory:` cannot be taken over. A
/// scheme that was registered before gets the new `open`.
///
/// ```
/// # use std::sync::Arc;
/// # use dblock_core::store::Store;
/// # fn my_store(_: &str) -> Result<Arc<dyn Store>, dblock_core::LockError> { Err(dblock_core::LockError::invalid("")) }
/// dblock_core::store::schemes::register(&["mystore"], my_store);
/// ```
pub fn register(schemes: &[&'static str], open: Open) {
    let mut openers = OPENERS.write().unwrap_or_else(PoisonError::into_inner);
    openers.extend(schemes.iter().map(|scheme| (*scheme, open)));
}

/// The scheme in small letters, without what is added behind a `+` or `-`.
#[doc(hidden)]
pub fn protocol(scheme: &str) -> String {
    let (protocol, _) = scheme.split_once(['+', '-']).unwrap_or((scheme, ""));
    protocol.to_ascii_lowercase()
}

/// The function that opens URLs with this scheme, if it is registered.
#[doc(hidden)]
pub fn opener(scheme: &str) -> Option<Open> {
    let openers = OPENERS.read().unwrap_or_else(PoisonError::into_inner);
    openers.get(&*protocol(scheme)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(_: &str) -> Result<Arc<dyn Store>, LockError> {
        Err(LockError::invalid("no"))
    }

    #[test]
    fn a_scheme_stands_for_those_that_add_something() {
        register(&["here"], refuses);
        for scheme in ["here", "HERE", "here+cluster", "here-unix"] {
            assert!(opener(scheme).is_some(), "{scheme}");
        }
        for scheme in ["heres", "", "there+here"] {
            assert!(opener(scheme).is_none(), "{scheme}");
        }
    }
}
