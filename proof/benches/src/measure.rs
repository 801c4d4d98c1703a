//! Numbers: percentiles of one round, medians over rounds.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::load::Seen;

/// The values of one round of one subject, and then the medians over the rounds.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    /// The most that were seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<f64>,
    /// Statements a second that the server saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) statements: Option<f64>,
    /// The values that only this scenario has.
    #[serde(flatten)]
    pub(crate) more: BTreeMap<&'static str, f64>,
}

impl Figures {
    /// Rate, and the times of whole pairs.
    pub(crate) fn of_pairs(seen: &Seen) -> Self {
        Self::of(seen.per_second(), seen.pairs.clone())
    }

    /// Rate, and the times from asking to being inside.
    pub(crate) fn of_waits(seen: &Seen) -> Self {
        Self::of(seen.per_second(), seen.waits.clone())
    }

    pub(crate) fn of(per_s: f64, mut nanos: Vec<u64>) -> Self {
        nanos.sort_unstable();
        Self {
            per_s: Some(per_s),
            p50_us: percentile(&nanos, 0.5),
            p99_us: percentile(&nanos, 0.99),
            ..Self::default()
        }
    }

    /// A figure that only this scenario has.
    pub(crate) fn named(&self, name: &str) -> Option<f64> {
        self.more.get(name).copied()
    }

    pub(crate) fn with(mut self, name: &'static str, value: f64) -> Self {
        self.more.insert(name, value);
        self
    }

    /// The median of each figure; of the connections the most.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> Option<f64>| median(rounds.iter().filter_map(figure).collect());
        let names = rounds.iter().flat_map(|round| round.more.keys().copied());
        let per_s = of(|round| round.per_s);
        // Counted in one round only, because the number does not depend on the machine's noise.
        let per_pair = rounds.iter().find_map(|round| round.named("statements_per_pair"));
        Self {
            per_s,
            p50_us: of(|round| round.p50_us),
            p99_us: of(|round| round.p99_us),
            connections: rounds
                .iter()
                .filter_map(|round| round.connections)
                .reduce(f64::max),
            statements: of(|round| round.statements).or_else(|| Some(per_pair? * per_s?)),
            more: names
                .filter_map(|name| {
                    let values = rounds.iter().filter_map(|round| round.more.get(name).copied());
                    Some((name, median(values.collect())?))
                })
                .collect(),
        }
    }
}

/// µs, from sorted ns.
fn percentile(sorted: &[u64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and `last`"
    )]
    let place = (last as f64 * share).round() as usize;
    Some(sorted[place] as f64 / 1000.0)
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// The standard error of the median, from the median distance to it, as for normally distributed values.
/// Without the far ends, which a median does not follow either.
pub(crate) fn spread_of_median(values: &[f64]) -> f64 {
    const SIGMA_OVER_MEDIAN_DISTANCE: f64 = 1.4826;
    const MEDIAN_OVER_MEAN: f64 = 1.2533;
    let count = values.len() as f64;
    let distance = median(values.to_vec()).and_then(|middle| {
        let distances = values.iter().map(|value| (value - middle).abs());
        median(distances.collect())
    });
    distance.map_or(0.0, |distance| {
        MEDIAN_OVER_MEAN * SIGMA_OVER_MEDIAN_DISTANCE * distance / count.sqrt()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_stands_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn percentiles_are_microseconds() {
        let nanos: Vec<u64> = (0..=100).map(|i| i * 1000).collect();
        assert_eq!(percentile(&nanos, 0.5), Some(50.0));
        assert_eq!(percentile(&nanos, 0.99), Some(99.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn rounds_are_merged_figure_by_figure() {
        let round = |per_s, connections, share| {
            Figures {
                per_s: Some(per_s),
                connections: Some(connections),
                ..Figures::default()
            }
            .with("share", share)
        };
        let merged = Figures::median(&[round(1.0, 4.0, 7.0), round(9.0, 2.0, 5.0), round(5.0, 3.0, 6.0)]);
        assert_eq!(
            (merged.per_s, merged.connections, merged.p50_us),
            (Some(5.0), Some(4.0), None)
        );
        assert_eq!(merged.more.get("share").copied(), Some(6.0));
    }
}
