//! Histories in which a call waits for too long, keeps its key for too short or too long, or loses it without a
//! reason.

use super::sketch::{A, Ask, B, Sketch, TTL, begin, forced, paused};
use crate::check::Finding;
use crate::fault::Fault;
use crate::history::{End, Event, Line, MS};
use crate::process_id::ProcessId;

/// When the faults end, and when the recovery is over: after the longest lease and 4 s.
const CALM: i64 = 1_000;
const HEALTHY: i64 = CALM + 9_000;

fn calm(sketch: Sketch) -> Sketch {
    sketch.runner(CALM, Event::Calm)
}

/// One call with `hold_min` or `max_hold`, and how it ended.
fn held((hold_min, max_hold): (Option<u32>, Option<u32>), to: i64, end: End) -> Sketch {
    let mut sketch = Sketch::default();
    let ask = Ask {
        hold_min,
        max_hold,
        ..Ask::default()
    };
    sketch.ask_as(A, 1, 0, ask);
    sketch.enter(A, 1, 5, ("10", 10));
    sketch.end(A, 1, to, end);
    sketch
}

#[test]
fn nobody_comes_in_before_hold_min_is_over() {
    let sketch = |end, entered| held((Some(1_000), None), 20, end).section(B, 1, 20, entered, entered + 1);
    assert_eq!(sketch(End::Done, 1_000).findings(), []);
    let found = sketch(End::Done, 999).findings();
    assert!(matches!(found[..], [Finding::HoldMinCut { .. }]), "{found:?}");
    // A lost lock is not kept that long, nor one that an operator takes away.
    assert_eq!(sketch(End::Lost, 999).findings(), []);
    assert_eq!(forced(sketch(End::Done, 999), 500).findings(), []);
    let revoke = Fault::Revoke { key: 0 };
    let revoked = sketch(End::Done, 999).runner(500, Event::Fault { fault: revoke });
    assert_eq!(revoked.findings(), []);
    // An order before the grant concerned another lease.
    let late = |mut sketch: Sketch| {
        sketch.ask_as(A, 1, 100, Ask::with_hold_min(1_000));
        sketch.enter(A, 1, 105, ("10", 10));
        sketch.end(A, 1, 120, End::Done);
        sketch.section(B, 1, 20, 1_050, 1_060)
    };
    let revoked = |sketch: Sketch, at, injected| {
        let fault = || Fault::Revoke { key: 0 };
        let done = Event::Done {
            fault: fault(),
            injected,
        };
        let sketch = sketch.runner(50, Event::Fault { fault: fault() });
        late(sketch.runner(at, done)).findings()
    };
    let new = Sketch::default;
    assert!(matches!(
        revoked(new(), 100, true)[..],
        [Finding::HoldMinCut { .. }]
    ));
    assert_eq!(revoked(new(), 101, true), []);
    // The order may be carried out later; or the lease came by a local hand-over.
    assert_eq!(revoked(new(), 100, false), []);
    assert_eq!(revoked(new().section(A, 2, 9, 10, 104), 100, true), []);
    // The row keeps `hold_min` without its process.
    let killed = sketch(End::Done, 999).runner(100, Event::Killed { process: A });
    assert!(matches!(killed.findings()[..], [Finding::HoldMinCut { .. }]));
}

/// Seed 652 on MariaDB with a disk that fails: a lease without renewal ended while its connections were cut, before its
/// `hold_min` was in the row.
#[test]
fn a_lease_without_renewal_may_end_before_its_hold_min_is_written() {
    let found = |answered| {
        let mut sketch = Sketch::default();
        let ask = Ask {
            renew: false,
            ..Ask::with_hold_min(4_000)
        };
        sketch.ask_as(A, 1, 0, ask);
        sketch.enter(A, 1, 5, ("10", 10));
        sketch.leave(A, 1, answered - 900, answered - 900);
        sketch.answer(A, 1, answered, End::Done, None);
        let found = sketch.section(B, 1, 20, 3_500, 3_600).findings();
        found
            .iter()
            .any(|found| matches!(found, Finding::HoldMinCut { .. }))
    };
    assert!(!found(TTL));
    assert!(found(TTL - 1));
}

/// Seed 8 on PostgreSQL, 16 minutes in: the body before did not reach an await when its lease was lost.
#[test]
fn hold_min_counts_from_the_entry_beside_a_body_that_overran_seed_8() {
    let sketch = |entered| {
        let mut sketch = Sketch::default().section_last_seen(B, 1, 5, 0, (300, 0));
        sketch.ask_as(A, 1, 100, Ask::with_hold_min(1_000));
        sketch.enter(A, 1, 101, ("10", 10));
        sketch.end(A, 1, 310, End::Done);
        let found = sketch.section(B, 2, 20, entered, entered + 1).findings();
        found
            .iter()
            .any(|found| matches!(found, Finding::HoldMinCut { .. }))
    };
    assert!(!sketch(1_101));
    assert!(sketch(1_100));
}

/// Seeds 91 and 281 on PostgreSQL: the replies were late, or did not come, and the lease ended before its `hold_min`
/// was written.
#[test]
fn a_lease_that_ends_before_hold_min_is_written_leaves_the_key_seeds_91_and_281() {
    let (slot, ms) = (A.slot, 1_000);
    let late = Fault::Slow { slot, delay: 200, ms };
    let hole = Fault::BlackHole { slot, ms };
    let cut = Fault::CutAll { ms };
    let sketch = |answered, fault: Option<&Fault>| {
        let mut sketch = Sketch::default();
        let ask = Ask {
            ttl: 500,
            hold_min: Some(1_000),
            ..Ask::default()
        };
        sketch.ask_as(A, 1, 0, ask);
        sketch.enter(A, 1, 5, ("10", 10));
        sketch.leave(A, 1, 20, 20);
        sketch.answer(A, 1, answered, End::Done, None);
        if let Some(fault) = fault.cloned() {
            sketch = sketch.runner(10, Event::Fault { fault });
        }
        let found = sketch.section(B, 1, 20, 900, 901).findings();
        found
            .iter()
            .any(|found| matches!(found, Finding::HoldMinCut { .. }))
    };
    for fault in [&late, &hole, &cut] {
        assert!(!sketch(500, Some(fault)));
        assert!(sketch(499, Some(fault)));
    }
    assert!(sketch(500, None));
}

#[test]
fn hold_min_counts_from_the_end_of_the_one_before() {
    let sketch = |entered| {
        let mut sketch = Sketch::default().section(B, 1, 5, 0, 500);
        sketch.ask_as(A, 1, 100, Ask::with_hold_min(1_000));
        sketch.enter(A, 1, 501, ("10", 10));
        sketch.end(A, 1, 510, End::Done);
        sketch.section(B, 2, 20, entered, entered + 1)
    };
    assert_eq!(sketch(1_500).findings(), []);
    let found = sketch(1_499).findings();
    assert!(matches!(found[..], [Finding::HoldMinCut { .. }]), "{found:?}");
}

#[test]
fn a_body_ends_with_its_max_hold() {
    // A body may learn of the end 500 ms late.
    let sketch = |to| held((None, Some(1_000)), to, End::Lost);
    assert_eq!(sketch(1_505).findings(), []);
    let found = sketch(1_506).findings();
    assert!(matches!(found[..], [Finding::HeldTooLong { .. }]), "{found:?}");
    assert_eq!(paused(sketch(3_000), A, 900, 2_990).findings(), []);
    // An operator is no excuse.
    let found = forced(sketch(3_000), 900).findings();
    assert!(matches!(found[..], [Finding::HeldTooLong { .. }]), "{found:?}");
}

/// A caller waits from `asked` on and gives up; others enter and leave every so often meanwhile.
fn passed_over(asked: i64, every: i64, length: i64) -> Sketch {
    let mut sketch = calm(Sketch::default());
    let ask = Ask {
        wait: 20_000,
        ..Ask::default()
    };
    sketch.ask_as(A, 1, asked, ask);
    sketch.answer(A, 1, asked + length, End::Timeout, None);
    for call in 1..length / every {
        let at = asked + call * every;
        sketch = sketch.section(B, call.unsigned_abs(), call, at, at + 1);
    }
    sketch.runner(99_000, Event::SlowCommits)
}

#[test]
fn a_waiter_that_is_passed_over_for_too_long_is_found() {
    assert_eq!(passed_over(HEALTHY, 100, 5_100).findings(), []);
    let found = passed_over(HEALTHY, 100, 5_300).findings();
    assert!(
        matches!(found[..], [Finding::Starved { overtakers: 52, .. }]),
        "{found:?}"
    );
    // The others had asked before, or were few.
    let mut early = passed_over(HEALTHY, 100, 5_300);
    for line in early.0.workers.get_mut(&B).unwrap() {
        if matches!(line.event, Event::Ask { .. }) {
            line.at = HEALTHY * MS;
        }
    }
    let starved = |found: &Finding| matches!(found, Finding::Starved { .. });
    assert!(!early.findings().iter().any(starved));
    assert_eq!(passed_over(HEALTHY, 500, 9_500).findings(), []);
    // Others kept the key for long, again and again.
    assert_eq!(passed_over(HEALTHY, 1_100, 15_000).findings(), []);
    // The wait began before the recovery was over.
    assert_eq!(passed_over(HEALTHY - 1_000, 100, 6_000).findings(), []);
    // The process of the waiter was stopped.
    let stopped = paused(passed_over(HEALTHY, 100, 6_000), A, HEALTHY, HEALTHY + 2_000);
    assert_eq!(stopped.findings(), []);
}

#[test]
fn a_key_that_nobody_has_is_not_busy_for_long() {
    let sketch = |asked, by| {
        let mut sketch = calm(Sketch::default()).section(B, 1, 10, HEALTHY, HEALTHY + 10);
        for (call, at) in [(1, HEALTHY + 20), (2, asked)] {
            sketch.ask(A, call, at, None);
            sketch.answer(A, call, at + 1, End::Busy, Some(by));
        }
        sketch.section(B, 2, 30, asked + 1, asked + 2)
    };
    assert_eq!(sketch(HEALTHY + 1_521, 20).findings(), []);
    let found = sketch(HEALTHY + 1_522, 20).findings();
    assert!(matches!(found[..], [Finding::HeldByNobody { .. }]), "{found:?}");
    let found = sketch(HEALTHY + 1_522, 10).findings();
    assert!(
        matches!(found[..], [Finding::BusyAfterRelease { .. }]),
        "an owner had this token: {found:?}"
    );
}

#[test]
fn a_renewed_lease_lives_through_slow_commits() {
    let sketch = |ttl, renew| {
        let mut sketch = calm(Sketch::default()).runner(HEALTHY, Event::SlowCommits);
        let ask = Ask {
            ttl,
            renew,
            ..Ask::default()
        };
        sketch.ask_as(A, 1, HEALTHY, ask);
        sketch.enter(A, 1, HEALTHY + 1, ("10", 10));
        sketch.end(A, 1, HEALTHY + 4_000, End::Lost);
        sketch
    };
    let found = sketch(5_000, true).findings();
    assert!(matches!(found[..], [Finding::LostForNothing { .. }]), "{found:?}");
    assert_eq!(sketch(5_000, false).findings(), []);
    // Too short for commits that take 2 seconds.
    assert_eq!(sketch(3_000, true).findings(), []);
    assert_eq!(
        paused(sketch(5_000, true), A, HEALTHY + 10, HEALTHY + 200).findings(),
        []
    );
}

/// A lease of 2 seconds that is lost 4 seconds after the recovery, and others, of a process, that enter every so often.
fn lost_beside(process: ProcessId, every: i64, ask: Ask) -> Sketch {
    let mut sketch = calm(Sketch::default());
    sketch.ask_as(A, 1, HEALTHY, ask);
    sketch.enter(A, 1, HEALTHY + 1, ("10", 10));
    sketch.end(A, 1, HEALTHY + 4_000, End::Lost);
    for call in 1..=5_000 / every {
        let at = HEALTHY + call * every;
        let ask = Ask {
            key: "key1",
            ..Ask::default()
        };
        let number = 1 + call.unsigned_abs();
        sketch.ask_as(process, number, at, ask);
        sketch.enter(process, number, at, (&format!("b{call}"), call * 10));
        sketch.end(process, number, at, End::Done);
    }
    sketch.runner(HEALTHY + 5_000, Event::SlowCommits)
}

#[test]
fn a_short_lease_lives_as_long_as_the_store_grants_others() {
    let lost = |every| lost_beside(B, every, Ask::default());
    let found = lost(650).findings();
    assert!(matches!(found[..], [Finding::LostForNothing { .. }]), "{found:?}");
    // Nobody else was served for a third of the ttl.
    assert_eq!(lost(700).findings(), []);
    // The lease is not renewed, or has a `max_hold`.
    let ask = |renew, max_hold| Ask {
        renew,
        max_hold,
        ..Ask::default()
    };
    assert_eq!(lost_beside(B, 100, ask(false, None)).findings(), []);
    assert_eq!(lost_beside(B, 100, ask(true, Some(3_990))).findings(), []);
    // The process stood still, or its own trouble kept the renewal waiting.
    let paused = paused(lost(100), A, HEALTHY + 100, HEALTHY + 200);
    assert_eq!(paused.findings(), []);
    let on = |store, others, troubled| {
        let mut sketch = lost_beside(others, 100, Ask::default());
        sketch.0.runner.insert(
            0,
            Line {
                at: 0,
                event: begin(store),
            },
        );
        if troubled {
            let (key, begins) = ("once1".to_owned(), false);
            sketch.worker(A, HEALTHY + 3_000, Event::Troubled { key, begins });
        }
        let found = sketch.findings();
        match found[..] {
            [] => false,
            [Finding::LostForNothing { .. }] => true,
            _ => panic!("{found:?}"),
        }
    };
    assert!(!on("sqlite", A, true) && on("postgres", A, true));
    // Seed 644: those who wait for SQLite's file have no order.
    assert!(on("sqlite", A, false) && !on("sqlite", B, false));
}

#[test]
fn a_ticket_keeps_its_key_and_is_adopted_once() {
    // B adopts what A has given, or C enters without it.
    let given = |adopted: Option<i64>, next: i64| {
        let mut sketch = Sketch::default().section(A, 1, 10, 0, 20);
        let (since, until) = (21 * MS, 1_000 * MS);
        sketch.worker(
            A,
            25,
            Event::Ticket {
                call: 1,
                since,
                until,
            },
        );
        if let Some(at) = adopted {
            sketch.ask(B, 1, at, None);
            sketch.worker(
                B,
                at,
                Event::Adopts {
                    call: 1,
                    giver: A,
                    ticket: 1,
                },
            );
            sketch.answer(B, 1, at + 1, End::Dropped, None);
        }
        sketch.section(A, 2, 20, next, next + 10)
    };
    assert_eq!(given(None, 1_000).findings(), []);
    let found = given(None, 999).findings();
    assert!(matches!(found[..], [Finding::TicketCut { .. }]), "{found:?}");
    assert_eq!(given(Some(500), 999).findings(), [], "B may have had it");
    let found = given(Some(500), 499).findings();
    assert!(matches!(found[..], [Finding::TicketCut { .. }]), "{found:?}");
    assert_eq!(forced(given(None, 999), 500).findings(), []);
    let refused = |at, other: Option<End>| {
        let mut sketch = given(None, 1_000);
        let ends = [Some(End::Lost), other];
        for (call, end) in (1..).zip(ends.into_iter().flatten()) {
            sketch.ask(B, call, at, None);
            let adopts = Event::Adopts {
                call,
                giver: A,
                ticket: 1,
            };
            sketch.worker(B, at, adopts);
            sketch.answer(B, call, at + 1, end, None);
        }
        sketch
    };
    let found = refused(100, None).findings();
    assert!(matches!(found[..], [Finding::TicketRefused { .. }]), "{found:?}");
    assert_eq!(refused(520, None).findings(), [], "it was about to end");
    assert_eq!(
        refused(100, Some(End::Dropped)).findings(),
        [],
        "that one may have it"
    );
    assert_eq!(forced(refused(100, None), 50).findings(), []);

    let mut twice = Sketch::default();
    for (call, at) in [(2, 40), (3, 60)] {
        twice.ask(B, call, at, None);
        twice.worker(
            B,
            at,
            Event::Adopts {
                call,
                giver: A,
                ticket: 1,
            },
        );
        twice.enter(B, call, at + 1, (&call.to_string(), 10 + at));
        twice.end(B, call, at + 10, End::Done);
    }
    let found = twice.findings();
    assert!(
        found
            .iter()
            .any(|found| matches!(found, Finding::TicketAdoptedTwice { .. })),
        "{found:?}"
    );
}

/// Found by SQLite's twenty minutes with seed 303.
#[test]
fn a_process_that_shares_lets_callers_in_until_it_learns_that_its_key_was_freed() {
    let shares = |first_left| {
        let mut sketch = Sketch::default();
        for (call, from, to) in [(1, 0, first_left), (2, 300, 400)] {
            let limit = Some(u32::MAX);
            sketch.ask_as(
                A,
                call,
                from,
                Ask {
                    limit,
                    ..Ask::default()
                },
            );
            sketch.enter(A, call, from + 1, (&call.to_string(), 10));
            sketch.end(A, call, to, End::Done);
        }
        sketch.section(B, 1, 20, 250, 350)
    };
    assert!(!shares(310).findings().is_empty());
    assert_eq!(forced(shares(310), 150).findings(), []);
    // Nobody had stayed, so the second call got the lock when it was another one's.
    let found = forced(shares(100), 150).findings();
    assert!(
        found.iter().any(|found| matches!(found, Finding::Overlap { .. })),
        "{found:?}"
    );
}
