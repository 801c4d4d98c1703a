//! The checks that go through a [`LockManager`](dblock::LockManager) over a store: what a program sees.
//!
//! Leases are 30 seconds long where a check must not pass because one ran out, and 1 second, the shortest,
//! where one must run out.

#![allow(
    clippy::async_yields_async,
    clippy::large_futures,
    reason = "bodies are nested, and hand out tasks that outlive them"
)]

mod capabilities;
mod exclusion;
mod keys;
mod loss;
mod operators;
mod reentry;
mod release;
mod resent;
mod setup;
mod shared;
mod sharing;
mod slow;
mod tickets;
mod tokens;
mod waiting;

use dblock_conformance::AnyFixture;

pub use self::capabilities::*;
pub use self::exclusion::*;
pub use self::keys::*;
pub use self::loss::*;
pub use self::operators::*;
pub use self::reentry::*;
pub use self::release::*;
pub use self::resent::*;
pub use self::shared::*;
pub use self::sharing::*;
pub use self::slow::*;
pub use self::tickets::*;
pub use self::tokens::*;
pub use self::waiting::*;

/// The suite for stores, and beside it each check through a manager: the same `#[tokio::test]`s of the same
/// [`Fixture`](dblock_conformance::Fixture) as [`store_conformance!`](dblock_conformance::store_conformance) makes.
#[macro_export]
macro_rules! conformance {
    ($fixture:expr) => {
        $crate::dblock_conformance::store_conformance!($fixture);
        $crate::manager_conformance!($fixture);
    };
}

/// The checks through a manager alone.
#[macro_export]
macro_rules! manager_conformance {
    ($fixture:expr) => {
        $crate::manager_conformance!(@tests $fixture =>
            tasks_of_two_managers_never_overlap,
            callers_of_one_process_get_in_first_come_first_served,
            other_keys_do_not_wait,
            a_lease_left_behind_is_taken_over_when_its_ttl_is_over,
            renewal_keeps_a_body_inside_for_three_ttls,

            who_waits_holds_nothing,
            try_acquire_gives_none_when_busy,
            busy_says_who_and_how_long,
            timeout_says_who_and_how_long,
            a_wait_counts_the_whole_queue,
            a_waiter_gets_in_soon_after_the_release,

            tokens_grow_over_managers_and_force,
            a_guard_reports_its_own_token_while_another_has_a_newer,
            tokens_grow_over_a_takeover,

            the_longest_key_works,
            keys_that_look_alike_are_locks_of_their_own,

            each_hold_counts_in_the_row,
            owner_and_token_stay_the_same_inside,
            deep_nesting_counts_up_and_down,
            two_nested_calls_at_once_count_twice,
            siblings_without_an_enclosing_hold_exclude_each_other,
            a_spawned_task_is_a_new_owner,
            another_manager_does_not_reenter,
            a_guard_taken_inside_outlives_the_body,
            a_nested_call_that_is_dropped_counts_back,
            a_nested_panic_counts_back,
            nested_calls_with_other_keys_share_the_owner,
            waiting_forever_inside_of_another_lock_is_refused,
            a_lease_that_was_freed_by_force_is_not_reentered,
            an_expired_lease_is_not_reentered_even_if_nobody_took_it,
            reentry_extends_the_lease,

            a_body_that_returns_has_released,
            a_body_that_fails_has_released,
            a_panic_goes_on_after_the_release,
            with_leaves_nothing_behind_wherever_it_is_dropped,
            acquire_leaves_nothing_behind_wherever_it_is_dropped,
            an_acquire_cut_off_at_any_time_leaves_nothing_behind,
            a_waiting_acquire_that_is_dropped_leaves_nothing_behind,
            a_body_that_loses_a_select_is_released,
            a_body_that_times_out_is_released,
            an_aborted_task_is_released,
            a_released_guard_has_released,
            a_release_that_the_engine_sees_before_it_is_told_is_confirmed,
            a_dropped_guard_is_released,
            the_lock_outlives_its_manager_but_not_its_guard,
            hold_min_keeps_the_row_busy_but_not_the_caller,

            a_lease_freed_by_force_stops_its_body,
            a_body_that_only_wants_a_signal_goes_on,
            an_unrenewed_body_is_dropped_before_the_lease_ends,
            an_extended_guard_outlives_its_ttl,
            a_lease_that_is_over_is_not_extended,
            max_hold_ends_a_lease_that_is_renewed,
            a_body_that_finished_in_time_keeps_its_result,
            a_late_release_changes_nothing_and_says_lost,
            a_former_holder_renews_nothing,
            an_expired_guard_releases_nothing,
            the_loss_of_an_inner_lock_leaves_the_outer_one,
            the_loss_of_the_outer_lock_drops_the_nested_bodies,

            a_manager_that_ends_leaves_the_store_to_others,

            lost_replies_count_nothing_twice,
            lost_replies_free_nobody_elses_lock,
            lost_replies_lose_no_lease,
            lost_replies_lose_no_ticket,
            slow_answers_lose_no_lease,

            a_ticket_goes_from_one_manager_to_another,
            a_ticket_is_adopted_once,
            one_of_many_adopts_a_ticket,
            a_ticket_that_is_adopted_late_is_refused,
            an_expired_ticket_is_refused,
            a_ticket_is_over_after_an_operators_order,
            an_impostor_adopts_nothing,
            a_lock_with_another_hold_goes_into_no_ticket,
            an_adopt_cut_off_at_any_time_leaves_no_second_owner,
            a_ticket_that_nobody_gets_expires,

            managers_share_a_key_or_are_refused,
            a_limit_holds_over_managers,
            a_writer_gets_in_beside_readers_that_overlap,
            readers_get_in_beside_writers_that_follow_each_other,
            a_waiter_for_one_place_gets_in_beside_newcomers,

            inspect_filters_by_prefix_and_count,
            a_look_at_one_key_sees_that_key_alone,
            a_revoked_lock_is_free_when_its_holder_leaves,
            a_revoked_lease_is_told_and_not_renewed,
            a_key_freed_by_force_can_be_taken_at_once,
            orders_about_a_free_key_find_nothing,
            health_says_when_the_store_last_answered,

            locks_without_tables_name_the_remedy,
            fence_check_elsewhere_is_unsupported,
            runs_once_or_says_that_it_cannot,
            runtime_is_the_callers_or_its_own,
            a_ttl_below_the_shortest_is_refused,
            shares_and_has_tickets_as_documented,
        );
    };
    (@tests $fixture:expr => $($check:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                if let Some(fixture) = $fixture {
                    $crate::through_manager::$check(&fixture).await;
                }
            }
        )*
    };
}
