//! Limits that `dblock` has too. An attribute cannot read them there, so they are written twice;
//! `dblock-tests` checks that they agree.

/// The longest key in bytes, namespace prefix included.
pub(crate) const MAX_KEY_BYTES: usize = 255;

/// The most keys that one call takes together.
pub(crate) const MAX_KEYS: usize = 64;
