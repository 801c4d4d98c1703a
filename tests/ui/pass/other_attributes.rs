#![deny(missing_docs)]
//! Attributes, doc comments and visibility are kept.

use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

/// Documented.
#[must_use = "kept"]
#[inline]
#[allow(unused_variables)]
#[distributed_lock(key = "order:{id}")]
#[cfg(not(any()))]
#[doc = "More."]
pub async fn kept(id: u64, #[allow(unused)] unused: u8, #[cfg(any())] absent: u8) -> Result<u64, OrderError> {
    #![allow(unused_mut)]
    let mut unused_too = 1;
    Ok(id)
}

#[distributed_lock(key = "a")]
#[expect(unused_variables, reason = "an expectation is fulfilled once and only once")]
pub(crate) async fn expected(first: u8) -> Result<(), OrderError> {
    #![expect(unused_mut)]
    let mut second = ();
    Ok(second)
}

#[deprecated]
#[distributed_lock(key = "a", on_error = |_| ())]
#[cfg(any())]
pub async fn absent() {
    no_such_function();
}

/// It is visible in the crate alone.
pub fn used() {
    drop(expected(0));
}
