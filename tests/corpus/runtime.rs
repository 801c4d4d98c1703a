//! What generated code calls, without locks: the body runs at once, and something is dropped behind it, as the
//! release would be.

/// As `dblock::__private`.
pub mod __private {
    use std::future::Future;

    pub use std::concat;
    pub use std::format_args;
    pub use std::module_path;
    pub use std::option::Option::{None, Some};
    pub use std::result::Result::{Err, Ok};

    /// The key.
    pub fn format(key: std::fmt::Arguments<'_>) -> String {
        std::fmt::format(key)
    }

    /// No options.
    #[derive(Debug)]
    pub struct LockOptions;

    impl LockOptions {
        /// As in dblock.
        #[allow(clippy::new_without_default)]
        pub fn new() -> Self {
            Self
        }

        /// As in dblock.
        #[must_use]
        pub fn function(self, _: &'static str) -> Self {
            self
        }
    }

    /// As in dblock.
    pub fn declared<T>() -> T {
        unreachable!("stands behind `if false`")
    }

    /// As in dblock.
    pub trait Fallible: Sized {
        /// As in dblock.
        fn or_error(result: Result<Self, LockError>) -> Self;
    }

    impl<T> Fallible for Result<T, LockError> {
        fn or_error(result: Result<Self, LockError>) -> Self {
            result.unwrap_or_else(Err)
        }
    }

    /// Never.
    #[derive(Debug)]
    pub struct LockError;

    impl LockError {
        /// As in dblock.
        pub fn is_busy(&self) -> bool {
            true
        }
    }

    /// Runs the body.
    pub async fn run<F: Future>(
        _: Option<()>,
        _: String,
        _: LockOptions,
        body: F,
    ) -> Result<F::Output, LockError> {
        let release = crate::loud("release");
        let result = body.await;
        drop(release);
        Ok(result)
    }
}
