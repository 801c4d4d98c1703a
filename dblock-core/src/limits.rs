//! What is too long or too many, at compile time and at run time.

/// The longest key in bytes, namespace prefix included.
pub const MAX_KEY_BYTES: usize = 255;

/// The most keys that one call takes together.
pub const MAX_KEYS: usize = 64;
