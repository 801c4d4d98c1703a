//! The end of a run: every key recovered, no lease was lost afterwards, all processes ended, nothing is held,
//! and no money was lost.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::calls::{Call, Calls};
use super::facts::{Facts, Span};
use super::finding::Finding;
use super::outages;
use crate::history::{End, Event, History, MS};
use crate::once::PREFIX;
use crate::target::StoreKind;
use crate::worker::{LATEST_WRITE, LONGEST_TTL};

/// The time for recovery after the last fault: the longest lease, and a reconnect on a machine that stalls.
pub(crate) const RECOVERY: i64 = (LONGEST_TTL.as_secs().cast_signed() * 1_000 + 4_000) * MS;

/// A healthy store answers within this time.
const TIMEOUT: i64 = 2_500 * MS;

pub(super) fn check(history: &History, calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) {
    let mut quiet = false;
    for line in &history.runner {
        match &line.event {
            Event::Ended { process, code } if *code != Some(0) => findings.push(Finding::Crashed {
                process: *process,
                code: *code,
            }),
            Event::Stuck { process } => findings.push(Finding::Stuck { process: *process }),
            Event::Quiet { held } => {
                quiet = true;
                findings.extend(held.iter().cloned().map(Finding::HeldAtTheEnd));
            }
            Event::Bank { accounts, transfers } => {
                let kept = accounts
                    .iter()
                    .map(|account| account.balance - account.opened_with);
                if kept.sum::<i64>() != 0 || accounts.iter().any(|a| a.balance != a.opened_with + a.ledger) {
                    findings.push(Finding::MoneyLost(accounts.clone()));
                }
                transfers_kept(calls, transfers, findings);
            }
            _ => {}
        }
    }
    if !quiet {
        findings.push(Finding::Unfinished);
    }
    if let Some(calm) = facts.calm {
        recovered(calls, facts, calm + RECOVERY, findings);
    }
}

/// Each transfer that was reported as committed has both its lines in the ledger.
fn transfers_kept(calls: &Calls, transfers: &[i64], findings: &mut Vec<Finding>) {
    let mut lines: HashMap<i64, usize> = HashMap::new();
    for id in transfers {
        *lines.entry(*id).or_default() += 1;
    }
    let committed = calls.iter().filter_map(|call| call.transferred);
    for id in committed.filter(|id| lines.get(id) != Some(&2)) {
        findings.push(Finding::TransferLost { id });
    }
}

/// Whether nothing excuses the loss of a call's lease. It is renewed, as are those around it, and its process did
/// not stand still. While commits are slow, its ttl is the longest; before, the store granted others all the time,
/// because a busy machine may stop the store too. On SQLite others of its process: those who wait for the file have no
/// order, and other processes may be faster for a while.
fn must_live(call: &Call, lost: i64, calls: &Calls, facts: &Facts) -> bool {
    let slow = facts.only_slow.is_none_or(|slow| slow < lost);
    let stood_still = calls.outwards(call).any(|call| {
        let span = Span {
            from: call.asked,
            to: lost,
        };
        facts.still_within(call.process, span) > 0
    });
    let of_its_process = facts.is_about(StoreKind::Sqlite).then_some(call.process);
    let grants = outages::grants(calls, of_its_process);
    let renewed = |call: &Call| {
        let ttl = call.parameters.ttl;
        let lives = if slow {
            Duration::from_nanos(ttl.unsigned_abs()) >= LONGEST_TTL
        } else {
            let span = Span {
                from: lost - ttl,
                to: lost,
            };
            goes_on_granting(&grants, span, ttl / 3) && !facts.keeps_renewals_waiting(call.process, span)
        };
        call.parameters.renew
            && call.parameters.max_hold.is_none()
            && call.section.iter().all(|section| section.blocks.is_empty())
            && lives
    };
    !stood_still && calls.outwards(call).all(renewed)
}

/// Whether no two successive grants were further apart than `pause`.
fn goes_on_granting(grants: &[i64], span: Span, pause: i64) -> bool {
    let after = |time| grants.partition_point(|at| *at <= time);
    let times = [
        &[span.from],
        &grants[after(span.from)..after(span.to)],
        &[span.to],
    ]
    .concat();
    times.windows(2).all(|pair| pair[1] - pair[0] <= pause)
}

/// After the recovery every key is acquired, no lease is lost without a reason, and no call gets a store error.
fn recovered(calls: &Calls, facts: &Facts, since: i64, findings: &mut Vec<Finding>) {
    // Each run is called for some seconds only.
    let kept = calls.iter().filter(|call| !call.key.starts_with(PREFIX));
    let mut dead: BTreeSet<&str> = kept.map(|call| call.key.as_str()).collect();
    for call in calls.iter().filter(|call| call.section.is_some()) {
        // A section that began before may last all the time.
        if call.section_end() >= since {
            dead.remove(call.key.as_str());
        }
    }
    for call in calls.iter() {
        let Some(answer) = &call.answer else { continue };
        let span = Span {
            from: call.asked,
            to: answer.at,
        };
        let entered = call.section.as_ref().map(|section| section.entered);
        if answer.end == End::Lost
            && !facts.clocks.are_far_apart()
            && entered >= Some(since)
            && must_live(call, call.section_end(), calls, facts)
        {
            findings.push(Finding::LostForNothing {
                key: call.key.clone(),
                process: call.process,
                call: call.number,
                at: answer.at,
            });
        }
        // A busy machine may need longer than the shortest waits.
        let hurried = call.wait > 0 && call.wait < TIMEOUT || facts.still_within(call.process, span) > 0;
        let slow = facts.only_slow.is_some_and(|slow| slow < answer.at);
        let troubled = || {
            let span = Span {
                from: call.asked - i64::from(LATEST_WRITE) * MS,
                to: answer.at,
            };
            facts
                .troubles(call.process, span)
                .any(|trouble| trouble.key == call.key)
        };
        let broken = || facts.ends_sessions(call.process, span);
        // The server ends sessions that are idle for too long by its own clock.
        let far_apart = facts.clocks.are_far_apart();
        // No fault stays, so no call is refused for good that has done nothing. A commit may be of unknown outcome, and SQLite
        // does not say whether the disk has become read-only or the file may not be written.
        let may_be_refused =
            call.section.is_some() || call.form.ends_with_transaction() || facts.is_about(StoreKind::Sqlite);
        let passes = answer.end == End::Store || answer.end == End::Refused && may_be_refused;
        let expected =
            passes && (call.asked < since || hurried || slow || troubled() || broken() || far_apart);
        if matches!(answer.end, End::Store | End::Refused | End::Other) && !expected {
            findings.push(Finding::StoreFailed {
                key: call.key.clone(),
                at: answer.at,
                text: answer.text.clone().unwrap_or_default(),
            });
        }
    }
    findings.extend(dead.into_iter().map(|key| Finding::Dead { key: key.to_owned() }));
}
