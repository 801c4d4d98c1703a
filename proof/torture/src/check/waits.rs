//! No call hangs: it is decided within its wait, and ends soon after its section. A released lock is free.

use std::collections::HashMap;
use std::time::Duration;

use super::Verdict;
use super::calls::{Call, Calls, HANDED_OVER};
use super::facts::{Facts, LONGEST_LEASE, Span};
use super::finding::Finding;
use crate::history::{End, Form, MS};
use crate::once::PREFIX;
use crate::process_id::ProcessId;

/// The time that a call may take beyond its wait, on a machine that is busy.
pub(crate) const SLACK: i64 = 1_000 * MS;

/// The time that a call without a wait may take: the store's timeout.
pub(super) const ANSWER_TIMEOUT: i64 = 5_000 * MS;

/// The time beyond its wait for a call whose lock ends with a transaction, which must begin. A transfer writes no
/// section, and ends with the transaction.
const TRANSACTION_TIMEOUT: i64 = 4_000 * MS;

/// How long a call awaits its release at most.
pub(super) const RELEASE_TIMEOUT: i64 = 3_000 * MS;

/// How long after a release a caller may be refused because of its lease: a process believes the store's last
/// answer for a second, and the row may lag behind local hand-overs.
const LAG: i64 = 1_500 * MS;

/// How long after `hold_min` a lease that was extended for it ends at the latest.
const MARGIN_OF_HOLD_MIN: i64 = 1_000 * MS;

pub(super) fn check(calls: &Calls, facts: &Facts, verdict: &mut Verdict) {
    let mut longest = (0, 0);
    let mut latest = 0;
    for call in calls.iter() {
        let waited = awake(call, call.asked, call.decided(), facts);
        longest.0 = longest.0.max(waited);
        let limit = if call.wait == 0 { ANSWER_TIMEOUT } else { call.wait };
        let more = if call.form.ends_with_transaction() {
            TRANSACTION_TIMEOUT
        } else {
            0
        };
        let limit = facts.clocks.most(call.process, limit + more);
        latest = latest.max(waited - limit);
        judge(call, "to enter or give up", waited, limit, verdict);
        let left = call.section.as_ref().and_then(|section| section.left);
        if let (Some(left), Some(answer)) = (left, &call.answer) {
            let leaving = awake(call, left.at, answer.at, facts);
            longest.1 = longest.1.max(leaving);
            // The commit is the caller's.
            if !call.form.ends_with_transaction() {
                let limit = facts.clocks.most(call.process, RELEASE_TIMEOUT);
                judge(call, "to leave", leaving, limit, verdict);
            }
        }
    }
    let span = |ns: i64| Duration::from_nanos(ns.unsigned_abs());
    (verdict.counts.longest_wait, verdict.counts.longest_release) = (span(longest.0), span(longest.1));
    verdict.counts.latest = span(latest);
    busy_after_release(calls, facts, &mut verdict.findings);
}

/// The time between two moments in which something of the call's process ran.
fn awake(call: &Call, from: i64, to: i64, facts: &Facts) -> i64 {
    to - from - facts.still_within(call.process, Span { from, to })
}

fn judge(call: &Call, what: &'static str, took: i64, limit: i64, verdict: &mut Verdict) {
    if took > limit + SLACK {
        verdict.findings.push(Finding::Hung {
            key: call.key.clone(),
            process: call.process,
            call: call.number,
            what,
            took,
            limit,
            at: call.asked,
        });
    }
}

/// The end of an owner, as its callers know it.
#[derive(Clone, Copy)]
struct Freed {
    process: ProcessId,
    /// When its release was confirmed, or its lease was over without one.
    at: i64,
    /// When the last call of the owner ended.
    last: i64,
    /// The row was surely released. Otherwise it may be held until its lease ends.
    surely: bool,
    /// It may be held for longer than any lease that the processes ask for.
    unknown: bool,
    /// Others may have had it, too.
    shares: bool,
}

impl Freed {
    fn of(process: ProcessId) -> Self {
        Self {
            process,
            at: i64::MAX,
            last: 0,
            surely: true,
            unknown: false,
            shares: false,
        }
    }

    /// Whether the lease may have been handed to a call of the process that then waited for a second key, or for the
    /// connection of its transaction, and gave up; or whose process was killed or stopped just then. Then nobody entered with the
    /// next token, and the row may name the former owner until its lease ends.
    fn may_have_gone_on_to(&self, call: &Call, asked: i64, facts: &Facts) -> bool {
        let waits = call.asked..=call.decided();
        let mut pauses = facts.pauses(call.process).iter();
        let gave_up = call.form.takes_two()
            || call.form == Form::Transaction
            || call.answer.is_none()
            || pauses.any(|pause| waits.contains(&pause.from));
        gave_up
            && call.section.is_none()
            && waits.contains(&self.at)
            && call.process == self.process
            && asked <= call.decided().saturating_add(LONGEST_LEASE + LAG)
    }

    /// The end of this owner and of one to which the lease was handed over: the row may name either.
    fn with(self, next: &Self) -> Self {
        Self {
            process: self.process,
            at: self.at.max(next.at),
            last: self.last.max(next.last),
            surely: self.surely && next.surely,
            unknown: self.unknown || next.unknown,
            shares: self.shares || next.shares,
        }
    }
}

/// How the owner with this token ended, and all to whom its lease was handed over.
fn freed<'a>(released: &HashMap<(&'a str, i64), Freed>, key: &'a str, mut token: i64) -> Option<Freed> {
    let mut freed = *released.get(&(key, token))?;
    while let Some((next, of_next)) =
        (token + 1..=token + HANDED_OVER).find_map(|next| Some((next, released.get(&(key, next))?)))
    {
        (token, freed) = (next, freed.with(of_next));
    }
    Some(freed)
}

/// Whether the process of a call that shares died, was stopped, or heard no answer, before it knew of its part, which then lasts
/// for one lease. The others had left by `end`, and it matters for a call that asked at `asked`.
fn may_keep_a_part(call: &Call, end: i64, asked: i64, facts: &Facts) -> bool {
    let asks = Span {
        from: call.asked,
        to: call.decided(),
    };
    let knew = call.section.is_some() || call.answer.is_some();
    let pauses = facts.pauses(call.process).iter().map(|pause| pause.from);
    let stopped = pauses.filter(|at| (asks.from..=asks.to).contains(at));
    let died = (!knew).then_some(asks.to);
    let mut moments = stopped.chain(died);
    let lasts = |since: i64| asked <= since.saturating_add(LONGEST_LEASE);
    let is_unanswered =
        || asks.from <= end + LAG && lasts(asks.to) && facts.may_have_ended_a_session(call.process, asks);
    call.parameters.limit.is_some()
        && (moments.any(|at| at <= end + LAG && at < asked && lasts(at)) || is_unanswered())
}

/// A caller was refused because of a token whose release had been confirmed well before it asked.
fn busy_after_release(calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) {
    let mut released: HashMap<(&str, i64), Freed> = HashMap::new();
    for call in calls.iter() {
        let Some(section) = &call.section else { continue };
        let freed = released
            .entry((&call.key, section.token))
            .or_insert(Freed::of(call.process));
        let kept = section.entered + call.parameters.hold_min.unwrap_or(0);
        // A row that outlives its call is released when `hold_min` is over. If that failed, which nobody sees,
        // the lease ends.
        let free = |released| {
            if kept > released {
                (kept + MARGIN_OF_HOLD_MIN).max(released.saturating_add(call.parameters.ttl))
            } else {
                released
            }
        };
        // Other holds of the lease, such as a child's, may outlive the guard.
        let answered = call.answer.as_ref().map_or(i64::MAX, |answer| answer.at);
        freed.last = freed.last.max(answered);
        let done = call.answer.as_ref().is_some_and(|answer| answer.end == End::Done);
        // A call whose body has returned goes on without the confirmation in the end.
        let end = call.section_end();
        let timeout = facts.clocks.least(
            call.process,
            Span {
                from: end,
                to: end + RELEASE_TIMEOUT,
            },
        );
        let in_time = answered.saturating_sub(end) < timeout;
        let is_confirmed = done && (call.released.is_some() || in_time);
        // A row that nobody has released ends with its lease.
        let over = if is_confirmed {
            answered
        } else {
            answered.saturating_add(LONGEST_LEASE)
        };
        let over = call.released.unwrap_or(over);
        freed.at = freed.at.min(free(over));
        // Several processes share a token. One that dies before it has released its part keeps that for one lease.
        if call.parameters.limit.is_some() {
            freed.last = freed.last.max(over);
        }
        freed.shares |= call.parameters.limit.is_some();
        // An adopted lease lasts for half a minute. That of a run lasts until its outcome is written, and one that its caller's
        // transaction keeps until the process knows how that has ended.
        freed.unknown |=
            call.adopts.is_some() && !is_confirmed || matches!(call.form, Form::Once | Form::InTransaction);
        freed.surely &= is_confirmed && kept <= over;
    }
    // A run may have the next token without a section.
    for call in calls.iter().filter(|call| !call.key.starts_with(PREFIX)) {
        let Some(answer) = &call.answer else { continue };
        let Some(by) = answer
            .by
            .filter(|_| matches!(answer.end, End::Busy | End::Timeout))
        else {
            continue;
        };
        let Some(freed) = freed(&released, &call.key, by).filter(|freed| !freed.unknown) else {
            continue;
        };
        let at = freed.at;
        let end = at.max(freed.last);
        let since = if freed.surely {
            end
        } else {
            facts.over(facts.extended_late(freed.process, end))
        };
        let span = Span {
            from: since,
            to: call.asked,
        };
        // A process that hears nothing says what it heard last.
        let hears_nothing = facts.is_unanswered(
            call.process,
            Span {
                to: answer.at,
                ..span
            },
        );
        let released = Span { from: at, to: end };
        if since.saturating_add(LAG) < call.asked
            && !facts.hears_late(call.process, span)
            && !hears_nothing
            && !facts.may_have_forgotten(released)
            && !calls.iter().any(|other| {
                let may_keep = freed.may_have_gone_on_to(other, call.asked, facts)
                    || freed.shares && may_keep_a_part(other, end, call.asked, facts);
                other.key == call.key && may_keep
            })
        {
            findings.push(Finding::BusyAfterRelease {
                key: call.key.clone(),
                token: by,
                released: at,
                asked: call.asked,
            });
        }
    }
}
