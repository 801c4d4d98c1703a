//! Tests of the attributes that need `dblock`. In `dblock-macros` they would have `dblock` and its drivers
//! compiled twice: cargo builds what a crate of macros needs apart from what programs need.

/// The examples in the documentation of the attributes.
#[cfg(doctest)]
mod examples {
    #[doc = include_str!("../../dblock-macros/src/docs/distributed_lock.md")]
    struct DistributedLock;

    #[doc = include_str!("../../dblock-macros/src/docs/optimistic_retry.md")]
    struct OptimisticRetry;

    #[doc = include_str!("../../dblock-macros/src/docs/run_once.md")]
    struct RunOnce;
}
