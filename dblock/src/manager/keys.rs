//! What may be locked: one key, or several.

use std::collections::BTreeSet;

use dblock_core::limits;

use super::LockManager;
use crate::{InvalidKey, Key};

/// One key or several, as [`LockManager::lock`] takes them.
///
/// | type | what is locked |
/// |---|---|
/// | `&str`, `String`, `&String` | one key |
/// | an array, a slice or a `Vec` of them, also borrowed | all of the keys or none; each counts once |
///
/// It is implemented for these types only.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a lock key nor a list of keys",
    label = "expected a `&str` or a `String`, or an array, a slice or a `Vec` of them",
    note = "to format a key, write `format!(\"order:{{id}}\")`; to collect an iterator, `.collect::<Vec<_>>()`"
)]
pub trait LockKeys {
    /// The message says why a key, or the list, is refused.
    #[doc(hidden)]
    fn wanted(self, namespace: Option<&str>, sealed: Sealed) -> Result<Wanted, String>;
}

/// Nobody else can name this type, so nobody else can implement [`LockKeys`].
#[derive(Debug)]
pub struct Sealed;

/// The keys of a call.
#[derive(Debug)]
pub enum Wanted {
    One(Key),
    /// At least two, sorted, and the place among them of the one that was given first.
    Several(Vec<Key>, usize),
}

fn checked(namespace: Option<&str>, key: &str) -> Result<Key, String> {
    Key::new(namespace, key).map_err(|refused: InvalidKey| refused.to_string())
}

impl Wanted {
    /// Each of the keys once.
    pub(crate) fn of<K: AsRef<str>>(
        namespace: Option<&str>,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Self, String> {
        let (mut sorted, mut first) = (BTreeSet::new(), None);
        for key in keys {
            let key = checked(namespace, key.as_ref())?;
            first.get_or_insert_with(|| key.clone());
            sorted.insert(key);
            if sorted.len() > LockManager::MAX_KEYS {
                return Err(format!(
                    "more than {} keys for one call; lock what they have in common instead",
                    limits::MAX_KEYS
                ));
            }
        }
        let Some(first) = first else {
            return Err("no keys to lock; name at least one, such as \"account:7\"".into());
        };
        if sorted.len() == 1 {
            return Ok(Self::One(first));
        }
        let place = sorted.iter().take_while(|key| **key < first).count();
        Ok(Self::Several(sorted.into_iter().collect(), place))
    }
}

macro_rules! one_key {
    ($($key:ty),*) => {$(
        impl LockKeys for $key {
            fn wanted(self, namespace: Option<&str>, _: Sealed) -> Result<Wanted, String> {
                checked(namespace, self.as_ref()).map(Wanted::One)
            }
        }
    )*};
}

macro_rules! several_keys {
    ($([$($generic:tt)*] $keys:ty),*) => {$(
        impl<K: AsRef<str>, $($generic)*> LockKeys for $keys {
            fn wanted(self, namespace: Option<&str>, _: Sealed) -> Result<Wanted, String> {
                Wanted::of(namespace, self)
            }
        }
    )*};
}

one_key!(&str, &&str, String, &String);
several_keys!([const N: usize] [K; N], [const N: usize] &[K; N], [] &[K], [] Vec<K>, [] &Vec<K>);
