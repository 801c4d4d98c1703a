//! Histories written by hand, in milliseconds.

use super::sketch::{A, Ask, B, Sketch, TTL, forced, operated, overlap, paused};
use crate::check::{Cause, Finding, check};
use crate::fault::Fault;
use crate::history::{AccountEnd, End, Event, Row};

const LONGEST_TTL: i64 = 5_000;

#[test]
fn one_after_the_other_is_well() {
    let sketch = Sketch::default()
        .section(A, 1, 10, 0, 100)
        .section(B, 1, 20, 101, 200);
    assert_eq!(sketch.findings(), []);
}

#[test]
fn two_inside_is_found() {
    let sketch = Sketch::default()
        .section(A, 1, 10, 0, 100)
        .section(B, 1, 20, 99, 200);
    assert_eq!(overlap(sketch), Cause::Unexplained);
}

/// Calls of A from 0 to 100 and of B from 50 to 150, each with its limit.
fn beside(limits: &[Option<u32>]) -> Vec<Finding> {
    let mut sketch = Sketch::default();
    for (number, limit) in (1..).zip(limits) {
        let (process, from) = if number % 2 == 1 { (A, 0) } else { (B, 50) };
        let limit = *limit;
        sketch.ask_as(
            process,
            number,
            from,
            Ask {
                limit,
                ..Ask::default()
            },
        );
        sketch.enter(process, number, from, (&format!("owner {number}"), 10));
        sketch.end(process, number, from + 100, End::Done);
    }
    sketch.findings()
}

#[test]
fn those_who_share_may_be_inside_together() {
    let (shares, three) = (Some(u32::MAX), Some(3));
    assert_eq!(beside(&[shares; 4]), []);
    assert_eq!(beside(&[three; 3]), []);
    let found = beside(&[three, Some(1), Some(2)]);
    assert!(
        matches!(found[..], [Finding::AboveLimit { limit: 1, .. }]),
        "{found:?}"
    );
    let four = Some(4);
    let in_the_place_of_another = beside(&[four, four, four, Some(1)]);
    assert_eq!(in_the_place_of_another, [], "the largest counts");
    let found = beside(&[shares, None]);
    assert!(
        found.iter().any(|found| matches!(found, Finding::Overlap { .. })),
        "{found:?}"
    );
    let found = beside(&[three; 4]);
    assert!(
        matches!(
            found[..],
            [Finding::AboveLimit {
                limit: 3,
                others: 3,
                ..
            }]
        ),
        "{found:?}"
    );
}

#[test]
fn two_inside_is_found_for_a_section_that_was_cut() {
    let mut sketch = Sketch::default().section(B, 1, 20, 99, 200);
    sketch.ask(A, 1, 0, None);
    sketch.enter(A, 1, 0, ("10", 10));
    let killed = |sketch: Sketch, at| sketch.runner(at, Event::Killed { process: A });
    assert_eq!(overlap(killed(sketch, 100)), Cause::Unexplained);
}

#[test]
fn a_pause_explains_what_it_covers() {
    let sketch = || {
        Sketch::default()
            .section(A, 1, 10, 0, 5_000)
            .section(B, 1, 20, 3_000, 6_000)
    };
    assert_eq!(overlap(paused(sketch(), A, 500, 4_990)), Cause::Paused);
    // The process ran for too long afterwards.
    assert_eq!(overlap(paused(sketch(), A, 500, 4_000)), Cause::Unexplained);
    // The pause began after the other owner had entered.
    assert_eq!(overlap(paused(sketch(), A, 3_500, 4_990)), Cause::Unexplained);
    // The other process was stopped.
    assert_eq!(overlap(paused(sketch(), B, 500, 4_990)), Cause::Unexplained);
}

#[test]
fn a_fail_over_explains_what_it_may_have_lost() {
    let fault = || Fault::FailOver {
        stop: false,
        ms: 1_000,
    };
    let fail_over = |until, injected| {
        let done = Event::Done {
            fault: fault(),
            injected,
        };
        Sketch::default()
            .section(A, 1, 10, 0, until)
            .section(B, 1, 20, 1_500, 9_000)
            .runner(1_000, Event::Fault { fault: fault() })
            .runner(2_000, done)
    };
    assert_eq!(overlap(fail_over(2_000 + LONGEST_TTL, true)), Cause::FailOver);
    // The fail-over was too long ago.
    assert_eq!(overlap(fail_over(2_100 + LONGEST_TTL, true)), Cause::Unexplained);
    // There was no fail-over.
    assert_eq!(overlap(fail_over(3_000, false)), Cause::Unexplained);
}

#[test]
fn force_explains_one_lease() {
    let sketch = |until| {
        Sketch::default()
            .section(A, 1, 10, 0, until)
            .section(B, 1, 20, 1_010, 9_000)
    };
    assert_eq!(overlap(forced(sketch(1_000 + LONGEST_TTL), 1_000)), Cause::Forced);
    assert_eq!(
        overlap(forced(sketch(1_100 + LONGEST_TTL), 1_000)),
        Cause::Unexplained
    );
    assert_eq!(overlap(forced(sketch(1_500), 1_020)), Cause::Unexplained);
}

/// An order or a fail-over takes nothing from a lease that is granted later.
#[test]
fn neither_force_nor_a_fail_over_explains_a_later_lease() {
    let sketch = |asked| {
        let mut sketch = Sketch::default();
        sketch.ask(A, 1, asked, None);
        sketch.enter(A, 1, 2_000, ("10", 10));
        sketch.end(A, 1, 4_000, End::Done);
        sketch.section(B, 1, 20, 3_000, 5_000)
    };
    // The order is answered at 1001.
    assert_eq!(overlap(forced(sketch(1_000), 1_000)), Cause::Forced);
    assert_eq!(overlap(forced(sketch(1_001), 1_000)), Cause::Unexplained);
    let failed_over = |asked| {
        let fault = || Fault::FailOver { stop: false, ms: 9 };
        let done = Event::Done {
            fault: fault(),
            injected: true,
        };
        sketch(asked)
            .runner(900, Event::Fault { fault: fault() })
            .runner(1_001, done)
    };
    assert_eq!(overlap(failed_over(1_000)), Cause::FailOver);
    assert_eq!(overlap(failed_over(1_001)), Cause::Unexplained);
}

#[test]
fn an_order_that_freed_nothing_explains_nothing() {
    let sketch = || {
        Sketch::default()
            .section(A, 1, 10, 0, 3_000)
            .section(B, 1, 20, 1_010, 9_000)
    };
    assert_eq!(overlap(operated(sketch(), 1_000, Some(true))), Cause::Forced);
    assert_eq!(
        overlap(operated(sketch(), 1_000, Some(false))),
        Cause::Unexplained
    );
    // An order with an unknown outcome may be carried out later.
    assert_eq!(overlap(operated(sketch(), 900, None)), Cause::Forced);
    // One of two overlapping orders freed the key.
    let key = || "key0".to_owned();
    let both = sketch()
        .runner(800, Event::Forcing { key: key() })
        .runner(900, Event::Forcing { key: key() })
        .runner(
            910,
            Event::Forced {
                key: key(),
                freed: Some(false),
            },
        )
        .runner(
            1_020,
            Event::Forced {
                key: key(),
                freed: Some(true),
            },
        );
    assert_eq!(overlap(both), Cause::Forced);
}

/// An order may have freed a lease that enters later, by a local hand-over or because the caller that asked for
/// it gave up.
#[test]
fn force_explains_a_lease_that_others_of_the_process_asked_for() {
    let late = |mut sketch: Sketch, token| {
        sketch.ask(A, 3, 1_100, None);
        sketch.enter(A, 3, 1_200, ("late", token));
        sketch.end(A, 3, 2_500, End::Lost);
        overlap(forced(sketch.section(B, 1, 2_000, 2_000, 3_000), 1_000))
    };
    let handed_over = |token| late(Sketch::default().section(A, 1, 10, 500, 1_150), token);
    assert_eq!(handed_over(11), Cause::Forced);
    // The lease was asked for after the order.
    let sketch = Sketch::default().section(A, 1, 10, 1_050, 1_150);
    assert_eq!(late(sketch, 1_000), Cause::Unexplained);

    let gave_up = |asked, at| {
        let mut sketch = Sketch::default();
        sketch.ask(A, 1, asked, None);
        sketch.answer(A, 1, at, End::Dropped, None);
        sketch
    };
    assert_eq!(late(gave_up(900, 950), 1_000), Cause::Forced);
    assert_eq!(late(gave_up(1_001, 1_050), 1_000), Cause::Unexplained);
    // The lease that it asked for has ended, or went to another caller.
    assert_eq!(late(gave_up(-4_000, -3_800), 1_000), Cause::Unexplained);
    let entered_since = gave_up(900, 950).section(A, 2, 10, 1_050, 1_060);
    assert_eq!(late(entered_since, 1_000), Cause::Unexplained);
}

#[test]
fn a_blocked_body_explains_as_long_as_it_blocks() {
    let sketch = |until| {
        let mut sketch = Sketch::default();
        sketch.ask(A, 1, 0, None);
        sketch.enter(A, 1, 0, ("10", 10));
        sketch.worker(A, 1, Event::Block { call: 1, ms: 2_500 });
        sketch.worker(A, until, Event::Unblock { call: 1 });
        sketch.leave(A, 1, 3_000, 3_000);
        sketch.section(B, 1, 20, 2_500, 4_000)
    };
    assert_eq!(overlap(sketch(2_999)), Cause::Blocked);
    assert_eq!(overlap(sketch(2_900)), Cause::Unexplained);
}

/// Seed 20 on MariaDB, 6.5 minutes in: a body that was to block for 1898 ms, past its lease of 1 s, slept 136
/// ms longer, since the machine was busy. It returned without an await.
#[test]
fn a_body_that_sleeps_longer_than_planned_blocks_until_it_returns_seed_20() {
    let mut sketch = Sketch::default();
    let ask = Ask {
        ttl: 1_000,
        ..Ask::default()
    };
    sketch.ask_as(A, 130, 0, ask);
    sketch.enter(A, 130, 2, ("10", 10));
    sketch.worker(A, 2, Event::Block { call: 130, ms: 1_898 });
    sketch.end(A, 130, 2_037, End::Lost);
    assert_eq!(overlap(sketch.section(B, 453, 20, 1_051, 1_052)), Cause::Blocked);
}

#[test]
fn a_body_that_was_not_polled_is_starved() {
    // The margin of 2 seconds is 100 ms.
    let sketch = |last| {
        Sketch::default()
            .section_last_seen(A, 1, 10, 0, (2_000, last))
            .section(B, 1, 20, 1_950, 3_000)
    };
    assert_eq!(overlap(sketch(1_900)), Cause::Starved);
    assert_eq!(overlap(sketch(1_901)), Cause::Unexplained);
    // The body took a step while the other owner was inside.
    let late = Sketch::default()
        .section_last_seen(A, 1, 10, 0, (2_200, 1_960))
        .section(B, 1, 20, 1_950, 3_000);
    assert_eq!(overlap(late), Cause::Unexplained);
}

/// Whatever becomes of its process, a lease lives in the store for two thirds of its ttl at least.
#[test]
fn nothing_lets_another_in_before_the_lease_can_have_ended() {
    let sketch = |comes| {
        let sketch = Sketch::default()
            .section(A, 1, 10, 0, 1_900)
            .section(B, 1, 20, comes, 2_000);
        paused(sketch, A, 10, 1_895)
    };
    assert_eq!(overlap(sketch(TTL * 2 / 3 - 1)), Cause::Unexplained);
    assert_eq!(overlap(sketch(TTL * 2 / 3 + 1)), Cause::Paused);
}

#[test]
fn a_jump_of_a_clients_clock_explains_nothing() {
    let fault = Fault::ClockJump { slot: 0, to_s: 3_600 };
    let sketch = Sketch::default()
        .section(A, 1, 10, 0, 100)
        .section(B, 1, 20, 99, 200)
        .runner(50, Event::Fault { fault });
    assert_eq!(overlap(sketch), Cause::Unexplained);
}

#[test]
fn a_token_given_twice_is_found() {
    let mut sketch = Sketch::default().section(A, 1, 10, 0, 100);
    sketch.ask(B, 1, 200, None);
    sketch.enter(B, 1, 200, ("another", 10));
    sketch.end(B, 1, 300, End::Done);
    let found = sketch.findings();
    assert!(matches!(found[..], [Finding::TokenReused { .. }]), "{found:?}");
}

#[test]
fn a_token_that_fell_is_found() {
    let sketch = Sketch::default()
        .section(A, 1, 20, 0, 100)
        .section(B, 1, 10, 200, 300);
    let found = sketch.findings();
    assert!(matches!(found[..], [Finding::TokenFell { .. }]), "{found:?}");
}

#[test]
fn a_reentry_keeps_its_token() {
    let sketch = |inner: (&str, i64)| {
        let mut sketch = Sketch::default();
        sketch.ask(A, 1, 0, None);
        sketch.enter(A, 1, 0, ("x", 10));
        sketch.ask(A, 2, 1, Some(1));
        sketch.enter(A, 2, 2, inner);
        for (call, at) in [(2, 3), (1, 4)] {
            sketch.end(A, call, at, End::Done);
        }
        sketch.findings()
    };
    assert_eq!(sketch(("x", 10)), []);
    let found = sketch(("x", 11));
    assert!(
        found
            .iter()
            .any(|found| matches!(found, Finding::ReentryChanged { .. })),
        "{found:?}"
    );
}

#[test]
fn a_stale_write_must_be_refused() {
    let sketch = || {
        Sketch::default()
            .section(A, 1, 10, 0, 100)
            .section(B, 1, 20, 200, 300)
            .write(250, B, 1, 20, true)
    };
    let found = sketch().write(260, A, 1, 10, true).findings();
    assert!(
        matches!(found[..], [Finding::StaleWriteAccepted { .. }]),
        "{found:?}"
    );

    let verdict = sketch().write(260, A, 1, 10, false).judge();
    assert_eq!(verdict.findings, []);
    assert_eq!((verdict.fence.accepted, verdict.fence.all_refused()), (1, 1));
}

#[test]
fn the_end_is_looked_at() {
    let row = Row {
        key: "k".to_owned(),
        token: 10,
        remaining_ms: 5,
        holder: "h".to_owned(),
    };
    let held = Sketch::default().runner(
        1,
        Event::Quiet {
            held: vec![row.clone()],
        },
    );
    assert_eq!(held.findings(), [Finding::HeldAtTheEnd(row)]);
    assert_eq!(check(&Sketch::default().0).findings, [Finding::Unfinished]);
    let stuck = Sketch::default().runner(1, Event::Stuck { process: A });
    assert_eq!(stuck.findings(), [Finding::Stuck { process: A }]);
    let (process, code) = (A, None);
    let crashed = Sketch::default().runner(1, Event::Ended { process, code });
    assert_eq!(crashed.findings(), [Finding::Crashed { process, code }]);
}

#[test]
fn lost_money_is_found() {
    let account = |account, balance, ledger| AccountEnd {
        account,
        opened_with: 100,
        balance,
        ledger,
    };
    let bank = |accounts: [AccountEnd; 2]| {
        let event = Event::Bank {
            accounts: accounts.to_vec(),
            transfers: Vec::new(),
        };
        Sketch::default().runner(1, event).findings()
    };
    assert_eq!(bank([account(0, 90, -10), account(1, 110, 10)]), []);
    // An update was lost, in one account or evenly in both.
    for accounts in [
        [account(0, 90, -10), account(1, 100, 10)],
        [account(0, 90, -20), account(1, 110, 20)],
    ] {
        let found = bank(accounts);
        assert!(matches!(found[..], [Finding::MoneyLost(_)]), "{found:?}");
    }
}

#[test]
fn a_lost_transfer_is_found() {
    let id = 1;
    let end = |transfers| {
        let mut sketch = Sketch::default().section(A, 1, 10, 0, 100);
        sketch.worker(A, 50, Event::Transferred { id });
        let accounts = Vec::new();
        sketch.runner(200, Event::Bank { accounts, transfers }).findings()
    };
    assert_eq!(end(vec![id, id]), []);
    for transfers in [vec![], vec![id]] {
        assert_eq!(end(transfers), [Finding::TransferLost { id }]);
    }
}

#[test]
fn everything_is_well_again_after_the_faults() {
    let sketch = |end| {
        let mut sketch = Sketch::default()
            .section(A, 1, 10, 0, 100)
            .runner(1_000, Event::Calm);
        sketch.ask(A, 2, 11_000, None);
        sketch.answer(A, 2, 11_001, end, None);
        sketch
    };
    let found = sketch(End::Busy).findings();
    assert!(matches!(found[..], [Finding::Dead { .. }]), "{found:?}");
    assert_eq!(sketch(End::Busy).section(B, 1, 20, 11_000, 11_100).findings(), []);
    let found = sketch(End::Store).section(B, 1, 20, 11_000, 11_100).findings();
    assert!(matches!(found[..], [Finding::StoreFailed { .. }]), "{found:?}");
    // The process itself lost the write of a record, of this key or of another.
    let kept = |key: &str| {
        let mut sketch = sketch(End::Store).section(B, 1, 20, 11_000, 11_100);
        let key = key.to_owned();
        sketch.worker(A, 10_900, Event::Troubled { key, begins: true });
        sketch.findings()
    };
    assert_eq!(kept("key0"), []);
    assert_eq!(kept("another").len(), 1);
}

#[test]
fn a_fault_refuses_no_call_for_good() {
    let during_faults = |end| {
        let mut sketch = Sketch::default().section(B, 1, 20, 11_000, 11_100);
        sketch.ask(A, 2, 500, None);
        sketch.answer(A, 2, 501, end, None);
        sketch.runner(1_000, Event::Calm).findings()
    };
    assert_eq!(during_faults(End::Store), []);
    let found = during_faults(End::Refused);
    assert!(matches!(found[..], [Finding::StoreFailed { .. }]), "{found:?}");
}

#[test]
fn a_checker_of_another_maker_agrees() {
    let second_from = |from| {
        Sketch::default()
            .section(A, 1, 10, 0, 3_000)
            .section(B, 1, 20, from, from + 100)
    };
    assert!(second_from(3_001).fits_an_order());
    assert!(!second_from(2_999).fits_an_order());
    assert!(paused(second_from(2_999), A, 2_000, 3_000).fits_an_order());
    assert!(
        !paused(second_from(1_000), A, 100, 3_000).fits_an_order(),
        "its lease still ran"
    );
    assert!(
        !paused(second_from(2_999), A, 100, 200).fits_an_order(),
        "it went on long before"
    );
    assert!(forced(second_from(1_000), 500).fits_an_order());
    let tokens = Sketch::default()
        .section(A, 1, 20, 0, 100)
        .section(B, 1, 10, 200, 300);
    assert!(!tokens.fits_an_order());
}

#[test]
fn a_run_says_of_what_it_has_shown_nothing() {
    let missing = |sketch: Sketch| sketch.judge().missing;
    let kill = "a process that is killed inside a lock";
    let calm = || Sketch::default().section(A, 1, 10, 0, 100);
    assert!(missing(calm()).contains(&kill));
    let mut killed = calm();
    killed.ask(B, 1, 200, None);
    killed.enter(B, 1, 200, ("20", 20));
    let killed = killed.runner(300, Event::Killed { process: B });
    assert!(!missing(killed).contains(&kill));
    let shared = "processes that share a lock";
    let beside_from = |from| {
        let mut sketch = calm();
        for (number, process, from) in [(2, A, 200), (3, B, from)] {
            let limit = Some(u32::MAX);
            let ask = Ask {
                limit,
                ..Ask::default()
            };
            sketch.ask_as(process, number, from, ask);
            sketch.enter(process, number, from, (&format!("owner {number}"), 20));
            sketch.end(process, number, from + 100, End::Done);
        }
        missing(sketch).contains(&shared)
    };
    assert_eq!([250, 350].map(beside_from), [false, true]);
}
