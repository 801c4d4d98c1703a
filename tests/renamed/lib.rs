//! A user of dblock who renamed the dependency, and who re-exports it from a module of their own.
#![no_implicit_prelude]

/// The face of a framework around dblock.
pub mod framework {
    pub use ::locks as lock_crate;
}

/// The renamed dependency itself.
///
/// # Errors
/// As the lock says.
#[::locks::distributed_lock(key = "report:{id}", ttl = "10s", crate = ::locks)]
pub async fn renamed(id: u64) -> ::std::result::Result<u64, ::locks::LockError> {
    ::std::result::Result::Ok(id)
}

/// A path into this crate.
///
/// # Errors
/// As the lock says.
#[::locks::distributed_lock(
    key = "report:{id}",
    wait = "forever",
    on_busy = ::std::result::Result::Ok(0),
    crate = crate::framework::lock_crate
)]
pub async fn re_exported(id: u64) -> ::std::result::Result<u64, ::locks::LockError> {
    ::std::result::Result::Ok(id)
}
