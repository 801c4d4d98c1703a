//! Lock keys: the one place that says what a key may be.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use crate::limits;

/// The name of a protected resource, as it stands in the `lock_key` column.
///
/// A key is 1 to 255 bytes of UTF-8 without NUL, namespace prefix included. Keys are compared byte by
/// byte: `a`, `A` and `a ` are three keys. A key is never shortened and never hashed.
///
/// A manager tells keys as they were typed: in errors, rows, records and guards. A store gets them with the
/// manager's namespace before them.
///
/// Cloning is cheap.
///
/// ```
/// # use dblock_core as dblock;
/// use dblock::Key;
///
/// let key: Key = "order:42".parse()?;
/// assert_eq!(key, Key::new(None, "order:42")?);
/// assert_eq!(key.to_string(), "order:42");
/// # Ok::<_, dblock::InvalidKey>(())
/// ```
#[derive(Clone)]
pub struct Key {
    text: Arc<str>,
    /// The length of the namespace and its colon, as far as that is known. It is ignored when keys are
    /// compared.
    namespace: usize,
}

impl Key {
    /// The longest key in bytes, namespace prefix included.
    pub const MAX_BYTES: usize = limits::MAX_KEY_BYTES;

    /// The longest namespace in bytes. It leaves room for a key behind it.
    pub const MAX_NAMESPACE_BYTES: usize = 100;

    /// Checks `key` and puts the namespace before it: `billing` and `order:42` give `billing:order:42`.
    ///
    /// # Errors
    /// The key is empty, contains a NUL, or is longer than [`Self::MAX_BYTES`] with its prefix.
    pub fn new(namespace: Option<&str>, key: &str) -> Result<Self, InvalidKey> {
        if key.is_empty() {
            return Err(InvalidKey::new(
                "the lock key is empty; name the resource, such as \"order:42\"",
            ));
        }
        if key.contains('\0') {
            return Err(InvalidKey::new(format!(
                "the lock key {key:?} contains a NUL byte, which databases cut off or refuse; leave it out"
            )));
        }
        let full: Arc<str> = match namespace {
            Some(namespace) => format!("{namespace}:{key}").into(),
            None => key.into(),
        };
        if full.len() > Self::MAX_BYTES {
            let start: String = full.chars().take(40).collect();
            return Err(InvalidKey::new(format!(
                "the lock key {start:?}… has {} bytes with its namespace; at most {} are allowed. \
                 Use a shorter key, or a digest of the long part",
                full.len(),
                Self::MAX_BYTES
            )));
        }
        Ok(Self {
            namespace: full.len() - key.len(),
            text: full,
        })
    }

    /// The whole key. In a store it begins with the manager's namespace.
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The key as the user has typed it.
    #[doc(hidden)]
    #[inline]
    pub fn typed(&self) -> &str {
        &self.text[self.namespace..]
    }

    /// A key without its namespace, for messages.
    #[doc(hidden)]
    #[must_use]
    pub fn to_typed(&self) -> Self {
        match self.namespace {
            0 => self.clone(),
            _ => Self {
                text: self.typed().into(),
                namespace: 0,
            },
        }
    }

    /// Removes the namespace from a key that a store has returned.
    #[doc(hidden)]
    #[must_use]
    pub fn out_of(&self, namespace: Option<&str>) -> Self {
        let typed = namespace.and_then(|namespace| self.text.strip_prefix(namespace)?.strip_prefix(':'));
        match typed {
            None => self.clone(),
            Some(typed) => Self {
                text: typed.into(),
                namespace: 0,
            },
        }
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Key {}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl PartialOrd for Key {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

/// Checks a namespace: not empty, at most [`Key::MAX_NAMESPACE_BYTES`], no NUL, and no `:`, which ends it
/// (otherwise two namespaces could share keys).
#[doc(hidden)]
pub fn check_namespace(namespace: &str) -> Result<(), InvalidKey> {
    let problem = if namespace.is_empty() {
        "is empty; leave the namespace out instead"
    } else if namespace.len() > Key::MAX_NAMESPACE_BYTES {
        "is longer than 100 bytes; choose a shorter one"
    } else if namespace.contains([':', '\0']) {
        "contains ':' or NUL; leave it out, because ':' separates the namespace from the key"
    } else {
        return Ok(());
    };
    Err(InvalidKey::new(format!("the namespace {namespace:?} {problem}")))
}

/// A key or namespace that is refused. The message says why, and what to write instead.
///
/// `?` makes it a `LockError::Invalid`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidKey {
    message: String,
}

impl InvalidKey {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

impl AsRef<str> for Key {
    #[inline]
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// A map whose keys are `Key` can be searched with a `&str`: both are compared, ordered and hashed by their
/// bytes.
impl Borrow<str> for Key {
    #[inline]
    fn borrow(&self) -> &str {
        &self.text
    }
}

/// As [`Key::new`] without a namespace.
impl FromStr for Key {
    type Err = InvalidKey;

    fn from_str(key: &str) -> Result<Self, InvalidKey> {
        Self::new(None, key)
    }
}

/// As [`Key::new`] without a namespace.
impl TryFrom<&str> for Key {
    type Error = InvalidKey;

    fn try_from(key: &str) -> Result<Self, InvalidKey> {
        Self::new(None, key)
    }
}

/// As [`Key::new`] without a namespace.
impl TryFrom<String> for Key {
    type Error = InvalidKey;

    fn try_from(key: String) -> Result<Self, InvalidKey> {
        Self::new(None, &key)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.as_str().to_owned()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    #[test]
    fn a_namespace_has_a_longest_length() {
        let long = "n".repeat(Key::MAX_NAMESPACE_BYTES);
        assert!(check_namespace(&long).is_ok());
        assert!(check_namespace(&format!("{long}n")).is_err());
    }

    #[test]
    fn a_key_carries_its_namespace() {
        assert_eq!(
            Key::new(Some("billing"), "order:42").unwrap().as_str(),
            "billing:order:42"
        );
        assert_eq!(Key::new(None, " a ").unwrap().as_str(), " a ");
        let key = Key::new(Some("billing"), "billing:7").unwrap();
        let read = Key::new(None, key.as_str()).unwrap();
        assert_eq!(
            (&key, key.typed(), read.typed()),
            (&read, "billing:7", "billing:billing:7")
        );
        for typed in [key.to_typed(), read.out_of(Some("billing"))] {
            assert_eq!((typed.as_str(), typed.typed()), ("billing:7", "billing:7"));
        }
        assert_eq!(read.out_of(Some("bill")), read);
    }

    #[test]
    fn length_counts_bytes_with_the_namespace() {
        assert!(Key::new(None, &"k".repeat(255)).is_ok());
        assert!(Key::new(None, &"k".repeat(256)).is_err());
        assert!(Key::new(Some("n"), &"k".repeat(253)).is_ok());
        assert!(Key::new(Some("n"), &"k".repeat(254)).is_err());
        assert!(Key::new(None, &"é".repeat(128)).is_err());
    }

    #[test]
    fn empty_and_nul_are_refused() {
        for bad in ["", "a\0b"] {
            let error = Key::new(None, bad).unwrap_err().to_string();
            assert_eq!(bad.parse::<Key>().unwrap_err().to_string(), error);
            assert_eq!(Key::try_from(bad).unwrap_err().to_string(), error);
            assert_eq!(Key::try_from(bad.to_owned()).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn a_key_is_found_and_sorted_as_its_text_is() {
        let texts = ["a", "B", "é", "a:b", "a "];
        let sorted: BTreeSet<Key> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let hashed: HashSet<Key> = sorted.iter().cloned().collect();
        for text in texts {
            assert_eq!(sorted.get(text).map(AsRef::as_ref), Some(text));
            assert_eq!(hashed.get(text).cloned().map(String::from).as_deref(), Some(text));
        }
        let sorted: Vec<String> = sorted.into_iter().map(String::from).collect();
        assert!(sorted.is_sorted(), "{sorted:?}");
        assert!(sorted.is_sorted_by_key(String::as_bytes), "{sorted:?}");
    }

    #[test]
    fn a_namespace_cannot_collide_with_another() {
        assert!(check_namespace("billing").is_ok());
        for bad in ["", "a:b", "a\0", &"n".repeat(101)] {
            assert!(check_namespace(bad).is_err(), "{bad:?}");
        }
    }
}
