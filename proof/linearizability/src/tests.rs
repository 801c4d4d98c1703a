use super::{Done, Judged, Operation, judge};

fn operation(object: &str, done: Done, from: i64, to: i64) -> Operation {
    let object = object.to_owned();
    Operation {
        object,
        done,
        from,
        to,
    }
}

fn enter(by: &str, limit: Option<u32>, token: i64, from: i64, to: i64) -> Operation {
    let by = by.to_owned();
    operation("lock a", Done::Enter { by, limit, token }, from, to)
}

fn leave(by: &str, from: i64, to: i64) -> Operation {
    let by = by.to_owned();
    operation("lock a", Done::Leave { by }, from, to)
}

fn count(number: i64, token: i64, from: i64, to: i64) -> Operation {
    operation("counter a", Done::Count { number, token }, from, to)
}

fn fits(operations: &[Operation]) -> bool {
    judge(operations.to_vec()).1.is_empty()
}

#[test]
fn two_owners_are_never_inside_at_once() {
    let first = [enter("x", None, 1, 0, 10), leave("x", 20, 30)];
    let then = |from, to| [&first[..], &[enter("y", None, 2, from, to), leave("y", 60, 60)]].concat();
    assert!(fits(&then(31, 40)));
    assert!(fits(&then(0, 25)), "it may have entered after 20");
    assert!(!fits(&then(11, 19)), "x was inside all the time");
    let only_enters = [enter("x", None, 1, 0, 10), enter("y", None, 2, 90, 91)];
    assert!(
        !fits(&only_enters),
        "who does not leave stays inside, in the next part too"
    );
}

#[test]
fn tokens_grow_from_owner_to_owner() {
    let second = |token| {
        fits(&[
            enter("x", None, 5, 0, 10),
            leave("x", 20, 20),
            enter("y", None, token, 30, 40),
        ])
    };
    assert_eq!([4, 5, 6].map(second), [false, false, true]);
    // Both were asked for at once: the order of the tokens is that of the owners.
    let both = [
        enter("x", None, 7, 0, 90),
        leave("x", 91, 91),
        enter("y", None, 6, 0, 40),
        leave("y", 50, 50),
    ];
    assert!(fits(&both));
}

#[test]
fn those_who_share_are_beside_each_other_up_to_their_limit() {
    let beside = |limits: &[Option<u32>]| {
        let owners = limits
            .iter()
            .zip(10..)
            .map(|(limit, n)| enter(&n.to_string(), *limit, n, n, n));
        fits(&owners.collect::<Vec<_>>())
    };
    assert!(beside(&[Some(2), Some(2)]));
    assert!(!beside(&[Some(2), Some(2), Some(2)]));
    assert!(
        beside(&[Some(3), Some(3), Some(2)]),
        "it takes the place of one in its process"
    );
    assert!(beside(&[Some(u32::MAX); 9]));
    assert!(!beside(&[Some(u32::MAX), None]));
    assert!(!beside(&[None, Some(u32::MAX)]));
}

#[test]
fn a_counter_counts_each_number_once() {
    assert!(fits(&[count(1, 5, 0, 1), count(2, 6, 2, 3), count(3, 7, 4, 5)]));
    assert!(
        !fits(&[count(1, 5, 0, 1), count(1, 6, 2, 3)]),
        "an update was lost"
    );
    assert!(!fits(&[count(1, 5, 0, 1), count(3, 6, 2, 3)]));
    assert!(
        !fits(&[count(1, 5, 0, 1), count(2, 4, 2, 3)]),
        "an owner of before has counted"
    );
    assert!(fits(&[count(2, 6, 0, 9), count(1, 5, 0, 9)]));
}

#[test]
fn a_violation_shows_its_part_only() {
    let quiet = (0..1_000).flat_map(|n| {
        let (by, at) = (n.to_string(), 100 * n);
        [enter(&by, None, n, at, at + 10), leave(&by, at + 50, at + 60)]
    });
    let wrong = [
        enter("x", None, 5_000, 200_000, 200_001),
        enter("y", None, 5_001, 200_000, 200_001),
    ];
    let other = operation("lock b", Done::Leave { by: "z".into() }, 0, 1);
    let (judged, violations) = judge(quiet.chain(wrong.clone()).chain([other.clone()]));
    let counted = Judged {
        left_out: 0,
        objects: 2,
        operations: 2_003,
        longest: 2,
    };
    assert_eq!(judged, counted);
    let [a, b] = &violations[..] else {
        panic!("{violations:?}")
    };
    assert_eq!((&a.part[..], &b.part[..]), (&wrong[..], &[other][..]));
    assert!(
        a.to_string()
            .starts_with("lock a: no order fits 2 operations:\n  200000 to 200001: Enter"),
        "{a}"
    );
}

#[test]
fn an_operation_is_one_flat_object() {
    let text = r#"{"object":"lock a","op":"enter","by":"x","token":1,"from":5,"to":9}"#;
    let read: Operation = serde_json::from_str(text).unwrap();
    assert_eq!(read, enter("x", None, 1, 5, 9));
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
}
