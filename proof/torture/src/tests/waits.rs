//! Histories in which a call takes too long to be decided or to end, or is refused for nothing.

use super::sketch::{A, Ask, B, Sketch, TTL, WAIT, begin, paused};
use crate::check::Finding;
use crate::fault::Fault;
use crate::history::{End, Event, Form};
use crate::process_id::ProcessId;

const C: ProcessId = ProcessId::first(2);

/// In ms.
const LONGEST_TTL: i64 = 5_000;

#[test]
fn a_call_that_outlasts_its_wait_is_found() {
    let sketch = |until| {
        let mut sketch = Sketch::default();
        sketch.ask(A, 1, 0, None);
        sketch.answer(A, 1, until, End::Timeout, None);
        sketch
    };
    assert_eq!(sketch(WAIT + 1_000).findings(), []);
    let found = sketch(WAIT + 1_001).findings();
    assert!(matches!(found[..], [Finding::Hung { .. }]), "{found:?}");
    // A process that is stopped cannot answer.
    assert_eq!(paused(sketch(WAIT + 3_000), A, 100, 2_100).findings(), []);
}

#[test]
fn a_call_without_an_answer_is_found() {
    let mut sketch = Sketch::default();
    sketch.ask(A, 1, 0, None);
    let sketch = sketch.runner(
        10_000,
        Event::Ended {
            process: A,
            code: Some(0),
        },
    );
    let found = sketch.findings();
    assert!(matches!(found[..], [Finding::Hung { .. }]), "{found:?}");
}

#[test]
fn a_release_that_hangs_is_found() {
    let mut sketch = Sketch::default();
    sketch.ask(A, 1, 0, None);
    sketch.enter(A, 1, 0, ("x", 10));
    sketch.leave(A, 1, 10, 10);
    sketch.answer(A, 1, 4_011, End::Done, None);
    let found = sketch.findings();
    assert!(
        matches!(found[..], [Finding::Hung { what: "to leave", .. }]),
        "{found:?}"
    );
}

#[test]
fn a_released_lock_is_not_busy() {
    let sketch = |asked, by| {
        let mut sketch = Sketch::default().section(A, 1, 10, 0, 100);
        sketch.worker(A, 100, Event::Released { call: 1 });
        sketch.ask(B, 1, asked, None);
        sketch.answer(B, 1, asked + 5, End::Busy, Some(by));
        sketch
    };
    assert_eq!(sketch(1_600, 10).findings(), []);
    assert_eq!(sketch(1_601, 11).findings(), []);
    assert_eq!(paused(sketch(1_601, 10), B, 50, 150).findings(), []);
    // Seed 721 on PostgreSQL.
    let deaf = |slot| {
        let fault = Fault::Deaf { slot, ms: 1_520 };
        sketch(1_601, 10)
            .runner(90, Event::Fault { fault })
            .findings()
            .len()
    };
    assert_eq!((deaf(B.slot), deaf(A.slot)), (0, 1));
    let found = sketch(1_601, 10).findings();
    assert!(
        matches!(found[..], [Finding::BusyAfterRelease { .. }]),
        "{found:?}"
    );
}

/// Seed 1 on Redis: the row names the first of those who share it until the last of them has left.
#[test]
fn a_shared_lock_is_busy_until_the_part_of_a_dropped_call_has_ended() {
    let asks = |asked| {
        let mut sketch = Sketch::default();
        let limit = Some(3);
        for (process, end) in [(A, End::Done), (B, End::Dropped)] {
            let ask = Ask {
                limit,
                ..Ask::default()
            };
            sketch.ask_as(process, 1, 0, ask);
            sketch.enter(process, 1, 0, (&process.to_string(), 10));
            sketch.end(process, 1, 100, end);
        }
        sketch.worker(A, 100, Event::Released { call: 1 });
        sketch.ask(A, 2, asked, None);
        sketch.answer(A, 2, asked + 5, End::Busy, Some(10));
        sketch.findings()
    };
    assert_eq!(asks(1_700), []);
    let found = asks(100 + LONGEST_TTL + 1_501);
    assert!(
        matches!(found[..], [Finding::BusyAfterRelease { .. }]),
        "{found:?}"
    );
}

/// A has released at 30 ms what it asked for.
fn released(ask: Ask) -> Sketch {
    let mut sketch = Sketch::default();
    sketch.ask_as(A, 1, 0, ask);
    sketch.enter(A, 1, 0, ("x", 10));
    sketch.leave(A, 1, 20, 20);
    sketch.worker(A, 30, Event::Released { call: 1 });
    sketch.answer(A, 1, 30, End::Done, None);
    sketch
}

/// A shares its key, with such a call, and has released it.
fn shared_and_released() -> (Sketch, Ask) {
    let ask = Ask {
        limit: Some(3),
        ..Ask::default()
    };
    (released(ask), ask)
}

/// Seed 1 on MariaDB: a process was killed while it asked for its part of a shared key, and the request was carried out.
#[test]
fn a_part_may_be_kept_by_a_process_that_never_knew_of_it_seed_1() {
    let sketch = |limit, asked| {
        let (mut sketch, ask) = shared_and_released();
        sketch.ask_as(C, 1, 10, Ask { limit, ..ask });
        let mut sketch = sketch.runner(40, Event::Killed { process: C });
        sketch.ask(B, 1, asked, None);
        sketch.answer(B, 1, asked + 5, End::Busy, Some(10));
        sketch.findings().len()
    };
    assert_eq!(sketch(Some(3), 40 + LONGEST_TTL), 0);
    // Its part is over, or it wanted the key alone.
    assert_eq!(sketch(Some(3), 41 + LONGEST_TTL), 1);
    assert_eq!(sketch(None, 4_000), 1);
}

/// Seed 722 on MariaDB: its answers were lost for a while.
#[test]
fn a_part_may_be_kept_by_a_process_that_hears_nothing_seed_722() {
    let sketch = |deaf, gives_up, asked| {
        let (mut sketch, ask) = shared_and_released();
        sketch.ask_as(C, 1, 10, ask);
        sketch.answer(C, 1, gives_up, End::Timeout, None);
        sketch.ask(B, 1, asked, None);
        sketch.answer(B, 1, asked + 5, End::Busy, Some(10));
        let fault = Fault::Deaf { slot: deaf, ms: 500 };
        sketch.runner(20, Event::Fault { fault }).findings().len()
    };
    assert_eq!(sketch(C.slot, 1_000, 1_000 + LONGEST_TTL), 0);
    assert_eq!(sketch(C.slot, 1_000, 1_001 + LONGEST_TTL), 1, "its part is over");
    assert_eq!(sketch(A.slot, 1_000, 3_000), 1, "another one heard nothing");
}

/// Seed 3301 on PostgreSQL: a process was stopped in that moment.
#[test]
fn a_part_may_be_kept_by_a_process_that_is_stopped_seed_3301() {
    let sketch = |stopped_at, asked| {
        let (mut sketch, ask) = shared_and_released();
        sketch.ask_as(C, 1, 10, ask);
        sketch.answer(C, 1, 3_100, End::Timeout, None);
        sketch.ask(B, 1, asked, None);
        sketch.answer(B, 1, asked + 5, End::Busy, Some(10));
        paused(sketch, C, stopped_at, stopped_at + 3_000).findings().len()
    };
    assert_eq!(sketch(40, 40 + LONGEST_TTL), 0);
    // Its part is over, or it was stopped before it asked.
    assert_eq!(sketch(40, 41 + LONGEST_TTL), 1);
    assert_eq!(sketch(5, 3_000), 1);
}

/// Seed 41 on etcd: a guard was released, and the lease went to a call of the process that waited for a second
/// key. That call gave up when the quorum was gone. Seed 3402 on MariaDB: it went to one that could not begin its transaction.
#[test]
fn a_lease_may_have_gone_on_to_one_that_waits_for_more_seeds_41_and_3402() {
    let sketch = |process, form, until| {
        let mut sketch = Sketch::default().section(A, 1, 10, 0, 100);
        sketch.worker(A, 100, Event::Released { call: 1 });
        let two = Ask {
            form,
            ..Ask::default()
        };
        sketch.ask_as(process, 2, 50, two);
        sketch.answer(process, 2, until, End::Timeout, None);
        sketch.ask(B, 3, 1_601, None);
        sketch.answer(B, 3, 1_606, End::Busy, Some(10));
        sketch.findings().len()
    };
    assert_eq!(sketch(A, Form::RunAll, 100), 0);
    assert_eq!(sketch(A, Form::Transaction, 100), 0);
    // The call had given up before, is for one key, or is of another process.
    assert_eq!(sketch(A, Form::RunAll, 99), 1);
    assert_eq!(sketch(A, Form::Run, 100), 1);
    assert_eq!(sketch(B, Form::RunAll, 100), 1);
}

/// Seeds 7 and 9 on PostgreSQL: the process was killed before `hold_min` was over, or the server took no
/// connections just then. The row ended with its lease.
#[test]
fn a_row_that_hold_min_keeps_ends_with_its_lease_at_the_latest_seeds_7_and_9() {
    let sketch = |hold_min: i64, asked| {
        let mut sketch = released(Ask::with_hold_min(u32::try_from(hold_min).unwrap()));
        sketch.ask(B, 1, asked, None);
        sketch.answer(B, 1, asked + 5, End::Busy, Some(10));
        sketch.findings()
    };
    // The rest of the ttl, or a second more than `hold_min`.
    for (hold_min, until) in [(800, 30 + TTL), (TTL, TTL + 1_000), (20, 30)] {
        assert_eq!(sketch(hold_min, until + 1_500), []);
        let found = sketch(hold_min, until + 1_501);
        assert!(
            matches!(found[..], [Finding::BusyAfterRelease { .. }]),
            "{found:?}"
        );
    }
}

/// Seed 722 on MariaDB: an extension for `hold_min` arrived once more, and nothing got through when it was over.
#[test]
fn a_row_that_hold_min_keeps_is_extended_by_what_arrives_late_seed_722() {
    let sketch = |hold_min: u32, slot, asked| {
        let mut sketch = released(Ask::with_hold_min(hold_min));
        sketch.ask(B, 1, asked, None);
        sketch.answer(B, 1, asked + 5, End::Busy, Some(10));
        let ms = Some(2_000);
        let (fault, done) = (Fault::Repeat { slot, ms }, Fault::Repeat { slot, ms });
        let sketch = sketch.runner(10, Event::Fault { fault });
        let injected = true;
        let sketch = sketch.runner(
            2_100,
            Event::Done {
                fault: done,
                injected,
            },
        );
        sketch.findings().len()
    };
    let until = 2_100 + LONGEST_TTL + 1_500;
    assert_eq!(sketch(1_900, A.slot, until), 0);
    assert_eq!(sketch(1_900, A.slot, until + 1), 1);
    assert_eq!(
        sketch(1_900, B.slot, until),
        1,
        "the statement of another process"
    );
    assert_eq!(sketch(20, A.slot, 3_000), 1, "it was released");
}

/// Seed 31 on etcd: what `hold_min` kept could not be released while there was no leader, and the next one
/// began the lease anew. Seed 91: a nested guard was released, and the outer body's own release was not confirmed in time.
#[test]
fn a_row_that_is_not_released_lasts_for_longer_when_etcd_has_a_new_leader_seed_31() {
    let sketch = |store: &str, hold_min, answers, asked| {
        let fault = || Fault::KillLeader { ms: 500 };
        let done = Event::Done {
            fault: fault(),
            injected: true,
        };
        let mut sketch = Sketch::default()
            .runner(0, begin(store))
            .runner(1_000, Event::Fault { fault: fault() })
            .runner(4_000, done);
        let ask = Ask {
            hold_min,
            ..Ask::default()
        };
        sketch.ask_as(A, 1, 0, ask);
        sketch.enter(A, 1, 0, ("x", 10));
        sketch.leave(A, 1, 20, 20);
        sketch.worker(A, 30, Event::Released { call: 1 });
        if answers {
            sketch.answer(A, 1, 30, End::Done, None);
        }
        sketch.ask(B, 1, asked, None);
        sketch.answer(B, 1, asked + 5, End::Busy, Some(10));
        sketch.findings().len()
    };
    let until = 4_000 + 5_000 + 1_500;
    assert_eq!(sketch("etcd", Some(800), true, until), 0);
    assert_eq!(sketch("etcd", Some(800), true, until + 1), 1);
    assert_eq!(sketch("zookeeper", Some(800), true, until), 1);
    // The row was released.
    assert_eq!(sketch("etcd", None, true, until), 1);
    // The process was killed before the call had ended.
    assert_eq!(sketch("etcd", Some(800), false, until + 1), 0);

    let unconfirmed = |answered, asked| {
        let fault = || Fault::KillLeader { ms: 500 };
        let done = Event::Done {
            fault: fault(),
            injected: true,
        };
        let mut sketch = Sketch::default()
            .runner(0, begin("etcd"))
            .runner(1_000, Event::Fault { fault: fault() })
            .runner(4_000, done);
        sketch.ask(A, 1, 0, None);
        sketch.enter(A, 1, 0, ("x", 10));
        sketch.ask(A, 2, 5, Some(1));
        sketch.enter(A, 2, 5, ("x", 10));
        sketch.worker(A, 10, Event::Released { call: 2 });
        sketch.end(A, 2, 10, End::Done);
        sketch.leave(A, 1, 20, 20);
        sketch.answer(A, 1, answered, End::Done, None);
        sketch.ask(B, 1, asked, None);
        sketch.answer(B, 1, asked + 5, End::Busy, Some(10));
        sketch.findings().len()
    };
    assert_eq!(unconfirmed(3_020, until), 0);
    assert_eq!(unconfirmed(3_020, until + 1), 1);
    assert_eq!(unconfirmed(3_019, until), 1);
}

#[test]
fn postgres_may_forget_a_release_when_it_crashes_right_after() {
    let sketch = |store: &str, crash| {
        let fault = Fault::KillServer;
        let sketch = Sketch::default()
            .runner(0, begin(store))
            .section(A, 1, 10, 0, 100);
        let mut sketch = sketch.runner(crash, Event::Fault { fault });
        sketch.worker(A, 100, Event::Released { call: 1 });
        sketch.ask(B, 1, 2_000, None);
        sketch.answer(B, 1, 2_005, End::Busy, Some(10));
        sketch.findings()
    };
    assert_eq!(sketch("postgres", 1_100), []);
    assert_eq!(sketch("postgres", 99).len(), 1);
    assert_eq!(sketch("postgres", 1_101).len(), 1);
    assert_eq!(sketch("mysql", 1_000).len(), 1);
}

/// Seed 102 on Redis with Sentinels: the former primary had just come back as a replica, and was promoted a second after
/// the release was confirmed, which it did not know of.
#[test]
fn a_replica_that_came_back_just_now_may_forget_a_release_seed_102() {
    let sketch = |back: i64| {
        let fault = || Fault::FailOver { stop: false, ms: 9 };
        let done = || Event::Done {
            fault: fault(),
            injected: true,
        };
        let sketch = Sketch::default()
            .runner(0, begin("redis-sentinel"))
            .section(A, 1, 20_000, 20_000, 20_050);
        let sketch = sketch.runner(back - 500, Event::Fault { fault: fault() });
        let sketch = sketch.runner(back, done());
        let sketch = sketch.runner(21_120, Event::Fault { fault: fault() });
        let mut sketch = sketch.runner(22_000, done());
        sketch.worker(A, 20_050, Event::Released { call: 1 });
        sketch.ask(B, 1, 22_300, None);
        sketch.answer(B, 1, 22_305, End::Busy, Some(20_000));
        sketch.findings().len()
    };
    assert_eq!(sketch(20_003), 0);
    assert_eq!(sketch(11_121), 0);
    assert_eq!(sketch(11_120), 1);
}

/// Seed 20 on MariaDB, 5.5 minutes in: a guard was released and the lease went to the next waiter of the
/// process, which was stopped 5 ms later, before the row named it.
#[test]
fn a_row_lags_behind_a_hand_over_when_its_process_is_stopped_seed_20() {
    let sketch = |successor| {
        let mut sketch = Sketch::default().section(A, 817, 10, 0, 28);
        sketch.worker(A, 28, Event::Released { call: 817 });
        sketch.ask(A, 818, 0, None);
        sketch.enter(A, 818, 35, ("another", successor));
        sketch.leave(A, 818, 6_875, 36);
        sketch.answer(A, 818, 6_875, End::Lost, None);
        sketch.ask(B, 437, 5_380, None);
        sketch.answer(B, 437, 5_382, End::Busy, Some(10));
        paused(sketch, A, 40, 6_874).findings()
    };
    assert_eq!(sketch(11), []);
    // With another lease in between, the key was free.
    let found = sketch(20);
    assert!(
        matches!(found[..], [Finding::BusyAfterRelease { .. }]),
        "{found:?}"
    );
}
