//! States that a run should have been in. Of one that never came the run has shown nothing, and it says so.

use super::Verdict;
use super::calls::{Call, Calls};
use super::facts::Facts;
use crate::history::{End, How};

/// The states that never came, in words.
pub(super) fn missing(calls: &Calls, facts: &Facts, verdict: &Verdict) -> Vec<&'static str> {
    let counts = &verdict.counts;
    let is_any = |is: fn(&Call) -> bool| calls.iter().any(is);
    let adopted = |call: &Call| Some((call.section.as_ref()?.entered, call.adopts?.0));
    let outlived = calls
        .iter()
        .filter_map(adopted)
        .any(|(at, giver)| facts.end_of(giver) < at);
    let came = [
        ("a process that is killed inside a lock", counts.cut > 0),
        (
            "a process that is killed while it waits",
            is_any(|call| call.section.is_none() && call.answer.is_none()),
        ),
        (
            "a call that is dropped while it waits",
            is_any(|call| {
                call.section.is_none() && call.answer.as_ref().is_some_and(|it| it.end == End::Dropped)
            }),
        ),
        ("a hand-over within a process", counts.handed_over > 0),
        (
            "a lease that is lost under its body",
            is_any(|call| {
                call.left_how() == Some(How::Dropped)
                    && call.answer.as_ref().is_some_and(|it| it.end == End::Lost)
            }),
        ),
        (
            "an owner that goes on beside the next one",
            !verdict.overlaps.is_empty(),
        ),
        (
            "a late write that the token stops",
            verdict.fence.all_refused() > 0,
        ),
        (
            "a transaction that is rolled back with its lock",
            is_any(|call| call.committed == Some(false)),
        ),
        (
            "a transaction that is committed with its lock",
            is_any(|call| call.form.ends_with_transaction() && call.committed == Some(true)),
        ),
        (
            "a ticket that is adopted",
            is_any(|call| call.adopts.is_some() && call.section.is_some()),
        ),
        ("processes that share a lock", share(calls)),
        ("a ticket that outlives its giver's process", outlived),
    ];
    let never = came.into_iter().filter(|(_, came)| !came);
    never.map(|(state, _)| state).collect()
}

/// Whether two processes were inside one lock at once, which they shared.
fn share(calls: &Calls) -> bool {
    calls.sections().iter().any(|(_, sections)| {
        sections.windows(2).any(|pair| {
            let [(first, _), (second, section)] = [pair[0], pair[1]];
            first.shares_with(second)
                && first.process != second.process
                && section.entered < first.section_end()
        })
    })
}
