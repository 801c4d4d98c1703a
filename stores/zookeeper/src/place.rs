//! Where things are in ZooKeeper's tree.
//!
//! ```text
//! /dblock/locks/2a/order:42     the row of the lock `order:42`
//! /dblock/clock                 written to read the clock
//! /dblock/purges                its version counts the times that nodes of rows were deleted
//! ```
//!
//! The rows are spread over folders, because a list of children is one answer of the server, whose length is
//! limited.

use dblock_core::Key;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// How many folders the rows are spread over.
const FOLDERS: u64 = 64;

/// The characters that are written as `%` and two digits in a node's name. ZooKeeper allows neither `/` nor
/// control characters there, and no name of dots alone.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b':').remove(b'-').remove(b'_');

/// The node that everything is below, such as `/dblock`.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    root: String,
}

impl Place {
    /// `root` begins with a slash and does not end with one.
    pub(crate) fn new(root: String) -> Self {
        Self { root }
    }

    pub(crate) fn clock(&self) -> String {
        format!("{}/clock", self.root)
    }

    pub(crate) fn purges(&self) -> String {
        format!("{}/purges", self.root)
    }

    pub(crate) fn locks(&self) -> String {
        format!("{}/locks", self.root)
    }

    /// The folder of a key's row.
    pub(crate) fn folder(&self, key: &Key) -> String {
        format!("{}/locks/{:02x}", self.root, hash(key.as_str()) % FOLDERS)
    }

    pub(crate) fn row(&self, key: &Key) -> String {
        format!("{}/{}", self.folder(key), name(key))
    }
}

/// The name of a node for `key`.
pub(crate) fn name(key: &Key) -> String {
    utf8_percent_encode(key.as_str(), ESCAPED).to_string()
}

/// The key of a node's name, if it is one that [`name`] makes.
pub(crate) fn key(name: &str) -> Option<Key> {
    let text = percent_decode_str(name).decode_utf8().ok()?;
    Key::new(None, &text).ok().filter(|key| self::name(key) == name)
}

/// FNV-1a. It must stay the same for ever, and all clients must agree on it.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_name_of_its_own() {
        for (text, expected) in [
            ("order:42", "order:42"),
            ("..", "%2E%2E"),
            ("a/b", "a%2Fb"),
            ("a%2Fb", "a%252Fb"),
            ("é\n", "%C3%A9%0A"),
        ] {
            let made = Key::new(None, text).unwrap();
            assert_eq!(name(&made), expected);
            assert_eq!(key(expected), Some(made));
        }
        for other in ["a.b", "%2f", "%FF", ""] {
            assert_eq!(key(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_row_stays_where_it_is() {
        let place = Place::new("/dblock".to_owned());
        let key = Key::new(None, "order:42").unwrap();
        assert_eq!(place.row(&key), "/dblock/locks/31/order:42");
    }
}
