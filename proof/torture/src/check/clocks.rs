//! What clocks that run at different rates, and a server's clock that jumps, do to a time that one of them measures. All
//! times are the host's. Where all clocks are the host's, nothing here changes anything.

use std::collections::HashMap;

use super::cause::{GRACE, margin};
use super::facts::LONGEST_LEASE;
use super::facts::Span;
use crate::history::MS;
use crate::process_id::ProcessId;

/// From here on the clocks are further apart than the margin of the shortest lease: a twentieth, or so long.
const FAR_APART: f64 = 1.05;
const FAR_AHEAD: i64 = 50 * MS;

/// The clocks of the processes, and the server's (`None`).
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// How fast they run, where that is not the host's rate.
    pub(super) rates: HashMap<Option<ProcessId>, f64>,
    /// When the server's clock jumped, and to which offset from the time by its rate.
    pub(super) jumps: Vec<(i64, i64)>,
}

impl Clocks {
    fn rate(&self, of: Option<ProcessId>) -> f64 {
        self.rates.get(&of).copied().unwrap_or(1.0)
    }

    /// They are further apart than the margin of a lease allows: what is measured by one of them means nothing to another.
    pub(super) fn are_far_apart(&self) -> bool {
        let rates = || self.rates.values().copied().chain([1.0]);
        let (slowest, fastest) = (rates().fold(1.0, f64::min), rates().fold(1.0, f64::max));
        fastest / slowest > FAR_APART || self.jumps.iter().any(|(_, to)| to.abs() > FAR_AHEAD)
    }

    /// The server's clock was set back at some time.
    pub(super) fn were_set_back(&self) -> bool {
        let offsets = std::iter::once(0).chain(self.jumps.iter().map(|(_, to)| *to));
        offsets
            .clone()
            .zip(offsets.skip(1))
            .any(|(before, to)| to < before)
    }

    /// By how much the server's clock jumped ahead in `span`.
    fn ahead(&self, span: Span) -> i64 {
        let first = self.jumps.partition_point(|(at, _)| *at <= span.from);
        let mut lowest = first.checked_sub(1).map_or(0, |before| self.jumps[before].1);
        let mut ahead = 0;
        for (_, to) in self.jumps[first..].iter().take_while(|(at, _)| *at < span.to) {
            ahead = (to - lowest).max(ahead);
            lowest = lowest.min(*to);
        }
        ahead
    }

    /// How much sooner than in the store a lease of this ttl ends for its holder. Negative if it ends later there, which only
    /// clocks do that are too far apart.
    fn sooner(&self, holder: ProcessId, ttl: i64, span: Span) -> i64 {
        by(ttl, self.rate(None)) - self.ahead(span) - by(ttl - margin(ttl), self.rate(Some(holder)))
    }

    /// How late the body of a lease of this ttl may be polled without being inside beside another owner.
    pub(super) fn margin(&self, holder: ProcessId, ttl: i64, span: Span) -> i64 {
        Some(self.sooner(holder, ttl, span))
            .filter(|sooner| *sooner > 0)
            .unwrap_or(margin(ttl))
    }

    /// For how long the holder of a lease of this ttl may go on beside the next owner, if its clock is too slow or the server's
    /// has jumped too far in `span`: as for the longest lease, because a local hand-over keeps the end of the former one.
    pub(super) fn goes_on(&self, holder: ProcessId, ttl: i64, span: Span) -> Option<i64> {
        let longest = self.sooner(holder, LONGEST_LEASE, span);
        let sooner = self.sooner(holder, ttl, span).min(longest);
        let most = by(LONGEST_LEASE, self.rate(Some(holder)));
        (sooner <= 0).then(|| most.min(-sooner) + GRACE)
    }

    /// For how long a lease lives in the store at least that its holder takes for one that lives for `length` from `since` on.
    pub(super) fn lives(&self, holder: ProcessId, length: i64, since: i64) -> i64 {
        let (process, server) = (self.rate(Some(holder)), self.rate(None));
        let ahead = self.ahead(Span {
            from: since,
            to: since.saturating_add(LONGEST_LEASE),
        });
        let slow = by(LONGEST_LEASE, process) - by(LONGEST_LEASE, server);
        by(length, process.max(server)) - slow.max(0) - ahead
    }

    /// The least time that may pass while the clock of a process, or the server's, counts from the beginning of `span` to its
    /// end.
    pub(super) fn least(&self, process: ProcessId, span: Span) -> i64 {
        let fastest = self.rate(Some(process)).max(self.rate(None)).max(1.0);
        by(span.to - span.from, fastest) - self.ahead(span)
    }

    /// The time in which the clock of a process counts `length`, if it is slow.
    pub(super) fn most(&self, process: ProcessId, length: i64) -> i64 {
        by(length, self.rate(Some(process)).min(1.0))
    }
}

/// The time in which a clock of this rate counts `length`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the times of a run are short"
)]
fn by(length: i64, rate: f64) -> i64 {
    (length as f64 / rate) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: ProcessId = ProcessId::first(0);
    const LONG: i64 = 5_000 * MS;

    fn clocks(process: f64, server: f64, jumps: &[(i64, i64)]) -> Clocks {
        Clocks {
            rates: [(Some(P), process), (None, server)].into(),
            jumps: jumps.iter().map(|(at, to)| (at * MS, to * MS)).collect(),
        }
    }

    fn span(from: i64, to: i64) -> Span {
        Span {
            from: from * MS,
            to: to * MS,
        }
    }

    #[test]
    fn clocks_of_the_host_change_nothing() {
        let clocks = Clocks::default();
        let all = span(0, 100_000);
        for ttl in [1_000 * MS, 1_234 * MS, LONG] {
            assert_eq!(clocks.margin(P, ttl, all), margin(ttl));
            assert_eq!(clocks.lives(P, ttl, 7), ttl);
            assert_eq!(clocks.goes_on(P, ttl, all), None);
            assert_eq!(
                (
                    clocks.least(P, Span { from: 1, to: 1 + ttl }),
                    clocks.most(P, ttl)
                ),
                (ttl, ttl)
            );
        }
        assert!(!clocks.are_far_apart());
    }

    #[test]
    fn a_slow_process_may_go_on_for_so_long() {
        let (slow, all) = (clocks(0.5, 1.0, &[]), span(0, 100_000));
        assert_eq!(slow.goes_on(P, 1_000 * MS, all), Some(4_500 * MS + GRACE));
        assert!(slow.are_far_apart() && slow.lives(P, 1_000 * MS, 0) < 0);
        // One that is fast ends before its lease.
        assert_eq!(clocks(2.0, 1.0, &[]).goes_on(P, 1_000 * MS, all), None);
        let within = clocks(0.99, 1.01, &[(10, 20)]);
        assert!(!within.are_far_apart());
        assert_eq!(within.goes_on(P, 1_000 * MS, all), None);
        assert_eq!(within.margin(P, 1_000 * MS, all) / MS, 10);
    }

    #[test]
    fn only_a_jump_ahead_ends_a_lease_sooner() {
        let jumps = clocks(1.0, 1.0, &[(10, -1_000), (20, 500), (30, 0)]);
        for (from, to, ahead) in [
            (0, 10, 0),
            (0, 20, 0),
            (0, 40, 1_500),
            (10, 40, 1_500),
            (20, 40, 0),
            (31, 40, 0),
        ] {
            assert_eq!(jumps.ahead(span(from, to)), ahead * MS, "{from} {to}");
        }
        assert_eq!(jumps.goes_on(P, LONG, span(0, 40)), Some(1_250 * MS + GRACE));
        assert_eq!(jumps.goes_on(P, LONG, span(20, 40)), None);
    }
}
