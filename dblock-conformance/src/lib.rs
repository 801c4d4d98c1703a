//! Tests whether a store keeps the contract of [`Store::apply`], for the stores of dblock and for any other.
//! **No semver promises**: a new version may have stricter checks. Use the version of your `dblock`.
//!
//! A store's author implements [`Fixture`] and writes one line, which makes one `#[tokio::test]` per check:
//!
//! ```
//! use std::sync::Arc;
//! use dblock::store::MemoryStore;
//! use dblock_conformance::Fixture;
//! use dblock_core::store::Store;
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
//!     dblock_conformance::store_conformance!(Some(Memory(MemoryStore::new())));
//! }
//! # fn main() {}
//! ```
//!
//! The tests need tokio with the features `macros` and `rt-multi-thread`. A check fails by panicking. Each
//! has rows of its own, in a fresh fixture, and waits for nothing longer than [`TIMEOUT`].
//!
//! The checks ask the store itself, request by request: each line of the table of [`Store::apply`], what an
//! operator may do, tokens, local hand-overs, successors and the release that passes a row on, random
//! requests beside [`rules`](dblock_core::store::rules), records, purge, wake-ups, batches, races between
//! handles, requests that are dropped, keys and holders of any text, the clock, missing tables and migration. What a `LockManager` makes of
//! the answers is no part of the contract, and is tested in dblock itself.
//!
//! Checks of what the store does not support run as well: the call must be refused as
//! [`Unsupported`](dblock_core::store::StoreErrorKind::Unsupported), or answered as
//! [`Capabilities`](dblock_core::store::Capabilities) says, and change nothing else.
//!
//! # For a driver
//! `fence_conformance!`, with the feature `fence`, is the suite for implementations of `FenceConnection`:
//! fence checks and releases in transactions of a driver. It needs the crate `dblock`, which has that trait.
//!
//! # For a store
//! `examples/custom_store` is a small store that passes, with a text on how to write one. Its test also has a
//! manager over it, to copy. Run the suite under load too: its bounds for times are wide.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![allow(clippy::missing_panics_doc, reason = "a check fails by panicking")]

mod acquire;
mod batch;
mod clockless;
#[doc(hidden)]
pub mod context;
mod differential;
mod dropped;
#[cfg(feature = "fence")]
mod fence;
mod forward;
mod hand_over;
mod holder;
mod inspect;
mod keys;
mod listen;
mod operator;
mod pass_on;
mod purge;
mod race;
mod record;
mod record_with_lock;
mod schema;
mod shared;
mod successor;
mod token;
mod wanted;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dblock_core::LockRow;
use dblock_core::store::{Store, StoreFuture};

pub use self::acquire::*;
pub use self::batch::*;
pub use self::clockless::*;
pub use self::differential::*;
pub use self::dropped::*;
#[cfg(feature = "fence")]
pub use self::fence::*;
pub use self::hand_over::*;
pub use self::holder::*;
pub use self::inspect::*;
pub use self::keys::*;
pub use self::listen::*;
pub use self::operator::*;
pub use self::pass_on::*;
pub use self::purge::*;
pub use self::race::*;
pub use self::record::*;
pub use self::record_with_lock::*;
pub use self::schema::*;
pub use self::shared::*;
pub use self::successor::*;
pub use self::token::*;
pub use self::wanted::*;

/// For this crate's macros: `dblock-core` may not be in scope where they are used.
#[doc(hidden)]
pub use dblock_core;

/// No check waits longer than this for anything.
pub const TIMEOUT: Duration = Duration::from_mins(1);

/// A fresh set of rows: a table, file or prefix that no other fixture uses.
pub trait Fixture: Sync {
    /// A new handle on the rows, independent of the others like another process. Its tables exist.
    fn store(&self) -> impl Future<Output = Arc<dyn Store>> + Send;

    /// A new handle on another place, the same one each time, that has no tables. `None`, the default, for a
    /// store that needs none.
    fn bare(&self) -> impl Future<Output = Option<Arc<dyn Store>>> + Send {
        std::future::ready(None)
    }

    /// Writes whole rows, past the contract, over those with the same keys, so that
    /// [`random_requests_are_carried_out_by_the_rules`] starts from rows in any state. `false`, the default, if
    /// the fixture cannot do that.
    fn place(&self, rows: &[LockRow]) -> impl Future<Output = bool> + Send {
        let _ = rows;
        std::future::ready(false)
    }

    /// Whether wake-ups arrive here, if the store has them. `false` behind a pooler, for example: there `listen`
    /// must end as unsupported.
    fn hears(&self) -> bool {
        true
    }

    /// Whether a key is one row. `false` for a store that keeps a key in two rows, as a `ShardedStore` does
    /// while it moves. Then [`random_requests_are_carried_out_by_the_rules`], whose rules are for one row, is
    /// left out; the owner of a lease that was passed on must ask, and may get a larger token; and a pass-on is
    /// told as a release.
    fn one_row(&self) -> bool {
        true
    }
}

/// A [`Fixture`] of any type: with it each check is compiled once, and not for each store.
#[doc(hidden)]
pub trait AnyFixture: Sync {
    fn store(&self) -> StoreFuture<'_, Arc<dyn Store>>;
    fn bare(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>>;
    fn place<'a>(&'a self, rows: &'a [LockRow]) -> StoreFuture<'a, bool>;
    fn hears(&self) -> bool;
    fn one_row(&self) -> bool;
}

impl<F: Fixture> AnyFixture for F {
    fn store(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(Fixture::store(self))
    }

    fn bare(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(Fixture::bare(self))
    }

    fn place<'a>(&'a self, rows: &'a [LockRow]) -> StoreFuture<'a, bool> {
        Box::pin(Fixture::place(self, rows))
    }

    fn hears(&self) -> bool {
        Fixture::hears(self)
    }

    fn one_row(&self) -> bool {
        Fixture::one_row(self)
    }
}

/// Makes one `#[tokio::test]` for each check of this crate.
///
/// The expression is evaluated anew in each test, inside an `async fn`, and gives an `Option` of a
/// [`Fixture`]; on `None` the test does nothing. Put the line into a module named
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

            five_hundred_processes_share_a_key,

            revoked_lease_is_not_lengthened,
            revocation_ends_with_the_lease,
            revoke_finds_only_held_rows,
            force_release_frees_at_once,
            force_release_finds_only_held_rows,

            tokens_grow_over_every_change_of_owner,
            quick_grants_have_different_tokens,

            spare_tokens_are_never_given_again,
            spare_tokens_are_kept_once,
            local_hand_over_is_written,
            late_local_hand_over_is_not_written,
            local_hand_over_is_named_by_a_takeover,
            local_hand_over_of_another_lease_changes_nothing,
            local_hand_over_of_a_revoked_lease_is_written,
            local_hand_over_above_the_ceiling_moves_it,

            purge_takes_only_idle_rows,
            purge_goes_in_steps,
            tokens_grow_over_a_purge,

            busy_acquire_becomes_the_successor,
            busy_acquire_without_queue_is_no_successor,
            successor_that_asks_again_keeps_its_place,
            successor_stays_before_who_came_at_about_the_same_time,
            successor_that_came_later_is_replaced,
            lapsed_successor_is_replaced_by_anybody,
            successor_withdraws,
            extend_and_revoke_leave_the_successor,
            takeover_clears_the_successor,
            force_release_clears_the_successor,

            release_passes_the_row_on,
            successor_that_asks_after_the_release_is_granted,
            tokens_grow_over_every_pass_on,
            release_frees_behind_a_lapsed_successor,
            batches_pass_on_free_and_withdraw,

            successor_without_a_clock_keeps_its_place,
            lock_without_a_clock_is_passed_on,
            lock_without_a_clock_is_passed_on_by_the_end_of_its_lease,
            place_without_a_clock_ends_by_itself,
            pass_on_without_a_clock_is_told,

            random_requests_are_carried_out_by_the_rules,

            record_writes_are_carried_out_by_the_rules,
            record_is_written_by_one_of_two,
            record_without_a_lease_leaves_the_row,
            record_ends_the_lease_that_it_names,
            record_is_written_under_the_lease_that_it_needs,
            record_is_not_written_after_its_lease_was_released,
            record_of_a_success_is_final,
            record_begins_with_the_grant,
            record_is_taken_back_with_the_release,
            record_of_each_key_of_a_batch_is_begun,
            record_changes_with_requests_by_the_rules,
            records_are_listed_by_prefix_and_state,
            records_are_read_together_as_alone,
            purge_of_records_spares_what_is_processing,
            missing_records_name_the_remedy,

            releases_of_wanted_keys_are_told,
            passed_on_rows_are_told,
            room_is_told,
            listening_can_be_dropped,

            empty_batch_has_no_answers,
            batch_of_mixed_actions_answers_in_order,
            batch_of_a_hundred_keys,

            one_owner_at_a_time,
            crossing_batches_exclude_each_other,
            fresh_keys_are_granted_once,
            repeated_requests_from_two_handles_agree,
            dropped_requests_leave_the_store_usable,

            keys_are_compared_byte_by_byte,
            holders_are_kept_as_they_are,

            inspect_compares_the_prefix_byte_by_byte,
            inspect_leaves_free_rows_out,
            inspect_orders_and_limits,
            inspect_shows_the_urgent_first_and_in_pages,
            clock_is_near_ours_and_moves,
            migrating_again_keeps_the_rows,
            missing_tables_name_the_remedy,
            capabilities_are_constant,
        );
    };
    (@tests $fixture:expr => $($check:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                if let Some(fixture) = $fixture {
                    $crate::$check(&fixture).await;
                }
            }
        )*
    };
}
