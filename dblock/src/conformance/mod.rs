//! The suite that shows that a store keeps the contract of [`Store::apply`], for the stores of this crate and
//! for any other. **No semver promises**: a new version may have stricter checks.
//!
//! A store's author implements [`Fixture`] and writes one line, which makes one `#[tokio::test]` per check:
//!
//! ```
//! use std::sync::Arc;
//! use dblock::conformance::Fixture;
//! use dblock::store::{Store, memory::MemoryStore};
//!
//! struct Memory(MemoryStore);
//!
//! impl Fixture for Memory {
//!     async fn store(&self) -> Arc<dyn Store> {
//!         Arc::new(self.0.clone())
//!     }
//! }
//!
//! mod memory {
//!     use super::*;
//!     dblock::store_conformance!(Some(Memory(MemoryStore::new())));
//! }
//! # fn main() {}
//! ```
//!
//! A check fails by panicking. Each has rows of its own, in a fresh fixture, and waits for nothing longer than
//! [`PATIENCE`].

#![allow(clippy::missing_panics_doc, reason = "a check fails by panicking")]

mod acquire;
mod batch;
mod holder;
mod inspect;
mod keys;
pub mod open;
mod operator;
mod race;
mod scene;
mod token;
mod wanted;

use std::future::Future;
use std::sync::Arc;

pub use self::acquire::*;
pub use self::batch::*;
pub use self::holder::*;
pub use self::inspect::*;
pub use self::keys::*;
pub use self::operator::*;
pub use self::race::*;
pub use self::scene::PATIENCE;
pub use self::token::*;
pub use self::wanted::*;
use crate::store::Store;

/// One fresh set of rows.
pub trait Fixture: Sync {
    /// A new handle on the rows, independent of the others like another process, with its tables made.
    fn store(&self) -> impl Future<Output = Arc<dyn Store>> + Send;
}

/// Makes one `#[tokio::test]` for each check of [`conformance`](crate::conformance).
///
/// The expression is evaluated anew in each test, inside an `async fn`, and gives an `Option` of a
/// [`Fixture`](crate::conformance::Fixture); on `None` the test does nothing. Put the line into a module named
/// after the store. The caller's crate needs tokio with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! store_conformance {
    ($fixture:expr) => {
        $crate::store_conformance!(@tests $fixture =>
            absent_row_is_granted,
            free_row_is_granted,
            row_held_by_another_is_busy,
            expired_row_is_taken_over,
            repeated_acquire_is_the_same_grant,
            repeated_acquire_does_not_undo_a_revocation,
            released_lease_is_not_granted_again,
            expired_lease_is_not_granted_again,

            extend_writes_the_count_and_lengthens,
            extend_never_shortens,
            extend_of_another_lease_changes_nothing,
            release_frees_once,
            release_of_another_lease_changes_nothing,
            expired_lease_stays_lost,
            former_holder_changes_nothing_after_a_takeover,
            former_holder_changes_nothing_after_a_new_grant,

            wanted_is_only_extended,
            wanted_is_reported_to_the_holder,
            wanted_runs_out,

            revoked_lease_is_not_lengthened,
            revocation_ends_with_the_lease,
            revoke_finds_only_held_rows,
            force_release_frees_at_once,
            force_release_finds_only_held_rows,

            tokens_grow_over_every_change_of_owner,
            quick_grants_have_different_tokens,

            empty_batch_has_no_answers,
            batch_of_mixed_actions_answers_in_order,
            batch_of_a_hundred_keys,

            one_owner_at_a_time,
            crossing_batches_exclude_each_other,
            repeated_requests_from_two_handles_agree,

            keys_are_compared_byte_by_byte,
            holders_are_kept_as_they_are,

            inspect_compares_the_prefix_byte_by_byte,
            inspect_leaves_free_rows_out,
            inspect_orders_and_limits,
            clock_is_near_ours_and_moves,
            migrating_again_keeps_the_rows,
            capabilities_are_constant,
        );
    };
    (@tests $fixture:expr => $($check:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                if let Some(fixture) = $fixture {
                    $crate::conformance::$check(&fixture).await;
                }
            }
        )*
    };
}
