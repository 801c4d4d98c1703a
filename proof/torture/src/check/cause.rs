//! Why a section went on although another owner was inside: the exceptions of the first guarantee, and nothing
//! else.

use super::calls::{Call, Calls, Section};
use super::facts::{Facts, LONGEST_LEASE, Span};
use crate::history::MS;
use crate::worker::LONGEST_TTL;

/// How much longer than its cause a section may last.
pub(super) const GRACE: i64 = 50 * MS;

/// How long a lease that was freed by force may go on for its holder. The longest ttl, because a local hand-over
/// keeps the end of the former owner's lease.
const FORCED_ENDS: i64 = LONGEST_TTL.as_secs().cast_signed() * 1_000 * MS;

/// Why two owners were inside a key at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The process of the former owner was stopped (SIGSTOP).
    Paused,
    /// An operator freed the key by force.
    Forced,
    /// A fail-over lost the lease of the former owner.
    FailOver,
    /// The body of the former owner did not reach an await.
    Blocked,
    /// The clocks of the former owner's process and of the server were further apart than the margin.
    Clocks,
    /// The machine did not run the body of the former owner for longer than its margin.
    Starved,
    /// The transaction of the former owner was rolled back in the middle of its section.
    RolledBack,
    /// None of these: a violation.
    Unexplained,
}

impl Cause {
    /// The exceptions of the guarantee.
    pub(crate) const EXCEPTIONS: [Self; 7] = [
        Self::Paused,
        Self::Forced,
        Self::FailOver,
        Self::Blocked,
        Self::Starved,
        Self::RolledBack,
        Self::Clocks,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Paused => "process stood still (SIGSTOP)",
            Self::Forced => "key freed by force",
            Self::FailOver => "lease lost by a fail-over",
            Self::Blocked => "body did not reach an await",
            Self::Clocks => "clocks further apart than the margin",
            Self::Starved => "body was not polled for longer than its margin",
            Self::RolledBack => "transaction rolled back under its body",
            Self::Unexplained => "UNEXPLAINED",
        }
    }
}

/// How much sooner than in the store a lease ends for its holder: a twentieth of its ttl, but at least 50 ms.
pub(super) fn margin(ttl: i64) -> i64 {
    (ttl / 20).max(50 * MS)
}

/// Why a section lasted through `span` whose lock ends with a transaction, if that is because of the transaction: it ended
/// before, with its session or by an error of the database, of which the body hears soon; and nothing of it may stand.
pub(super) fn cause_in_transaction(call: &Call, span: Span, calls: &Calls, facts: &Facts) -> Option<Cause> {
    let acquirer = calls.get(call.process, call.acquirer).unwrap_or(call);
    if !facts.ends_with_transaction(acquirer) {
        return None;
    }
    if acquirer.stands {
        return Some(Cause::Unexplained);
    }
    let before = Span {
        from: acquirer.asked,
        to: span.from,
    };
    let is_short = span.to - span.from - facts.still_within(call.process, span) <= GRACE;
    let is_rolled_back = is_short
        || facts.hears_late(call.process, span)
        || facts.may_have_ended_a_session(call.process, before);
    is_rolled_back.then_some(Cause::RolledBack)
}

/// Why a section lasted through `span`. Exceptions must cover the whole of it; the result is the one that covers
/// its beginning.
pub(super) fn cause(call: &Call, section: &Section, span: Span, calls: &Calls, facts: &Facts) -> Cause {
    cause_from(call, section, span, i64::MIN, calls, facts)
}

/// As [`cause`], for a lease that lives until `lives` at least: until then nothing but an operator or a
/// fail-over excuses another owner.
pub(super) fn cause_from(
    call: &Call,
    section: &Section,
    span: Span,
    lives: i64,
    calls: &Calls,
    facts: &Facts,
) -> Cause {
    let excused = exceptions(call, section, span.from, lives, calls, facts);
    covering(span, &excused).unwrap_or(Cause::Unexplained)
}

/// From when on the lease of a section may have been over without its owner's doing, for one of the exceptions.
pub(super) fn in_doubt_from(
    call: &Call,
    section: &Section,
    lives: i64,
    calls: &Calls,
    facts: &Facts,
) -> Option<i64> {
    let exceptions = exceptions(call, section, call.section_end(), lives, calls, facts);
    // An exception that was over while the lease surely lived has ended nothing.
    let real = exceptions.iter().filter(|(span, _)| span.from < span.to);
    real.map(|(span, _)| span.from).min()
}

/// When something but the owner may have ended the lease of a section, and what. Another owner came at `came`.
fn exceptions(
    call: &Call,
    section: &Section,
    came: i64,
    lives: i64,
    calls: &Calls,
    facts: &Facts,
) -> Vec<(Span, Cause)> {
    let mut excused = could_not_end(call, section, lives, facts);
    // An order before the grant took nothing from the lease.
    let granted = calls.granted_after(call);
    let mut takes = |order: Span, cause| {
        if granted < order.to {
            // The holder learns of the order at its next renewal, or its lease ends.
            let to = order.to.saturating_add(FORCED_ENDS + GRACE);
            excused.push((Span { to, ..order }, cause));
        }
    };
    for order in facts.forced(&call.key) {
        takes(*order, Cause::Forced);
    }
    for fail_over in facts.fail_overs() {
        takes(fail_over, Cause::FailOver);
    }
    // What happened longer ago than the longest lease, at the slowest rate and with a jump, is renewed since.
    let span = Span {
        from: granted.max(came - 3 * LONGEST_LEASE),
        to: came,
    };
    if let Some(length) = facts.clocks.goes_on(call.process, call.parameters.ttl, span) {
        let (from, to) = (lives.max(granted), came.saturating_add(length));
        excused.push((Span { from, to }, Cause::Clocks));
    }
    excused
}

/// Whether its process, its body or the machine made a section last through `span`.
pub(super) fn is_late_by_itself(call: &Call, section: &Section, span: Span, facts: &Facts) -> bool {
    covering(span, &could_not_end(call, section, i64::MIN, facts)).is_some()
}

/// When a section could not end, and why.
fn could_not_end(call: &Call, section: &Section, lives: i64, facts: &Facts) -> Vec<(Span, Cause)> {
    let mut excused = Vec::new();
    let alive = Span {
        from: call.asked,
        to: call.section_end(),
    };
    for pause in facts.pauses(call.process) {
        let to = pause.to.saturating_add(GRACE);
        let from = pause.from.max(lives);
        excused.push((Span { from, to }, Cause::Paused));
    }
    for &(from, to) in &section.blocks {
        let (from, to) = (from.max(lives), to.saturating_add(GRACE));
        excused.push((Span { from, to }, Cause::Blocked));
    }
    if let Some(left) = section.left
        && left.at - left.last_step >= facts.clocks.margin(call.process, call.parameters.ttl, alive)
    {
        let unpolled = Span {
            from: left.last_step.max(lives),
            to: left.at,
        };
        excused.push((unpolled, Cause::Starved));
    }
    excused
}

/// The cause at the beginning of `span`, if the causes together cover all of it.
fn covering(span: Span, excused: &[(Span, Cause)]) -> Option<Cause> {
    let mut first = None;
    let mut covered = span.from;
    loop {
        let reaches = |(excuse, _): &&(Span, Cause)| excuse.from <= covered && excuse.to > covered;
        let further = excused.iter().filter(reaches);
        // The other exceptions come before starvation, which they cause too.
        let next = match first {
            None => further.min_by_key(|(_, cause)| *cause),
            Some(_) => further.max_by_key(|(excuse, _)| excuse.to),
        };
        let Some((excuse, cause)) = next else {
            return first.filter(|_| covered >= span.to);
        };
        first = first.or(Some(*cause));
        covered = excuse.to;
        if covered >= span.to {
            return first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from: i64, to: i64) -> Span {
        Span { from, to }
    }

    #[test]
    fn exceptions_must_cover_all_of_it() {
        let excused = [
            (span(10, 20), Cause::Starved),
            (span(0, 15), Cause::Paused),
            (span(20, 30), Cause::Forced),
        ];
        assert_eq!(covering(span(5, 12), &excused), Some(Cause::Paused));
        assert_eq!(covering(span(5, 25), &excused), Some(Cause::Paused));
        assert_eq!(covering(span(16, 20), &excused), Some(Cause::Starved));
        assert_eq!(covering(span(5, 31), &excused), None);
        assert_eq!(covering(span(-1, 5), &excused), None);
        assert_eq!(covering(span(5, 6), &[]), None);
    }
}
