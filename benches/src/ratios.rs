//! The ratios that count, and what they must be.

use crate::measure::Figures;
use crate::results::Results;
use crate::scenario::Scenario;
use crate::subject::Kind;

/// Which side of a bound is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    AtMost { must: f64, aim: f64 },
    AtLeast { must: f64, aim: f64 },
}

impl Bound {
    /// Whether `value` reaches what it must, and the aim.
    pub(crate) fn reached(self, value: f64) -> (bool, bool) {
        match self {
            Self::AtMost { must, aim } => (value <= must, value <= aim),
            Self::AtLeast { must, aim } => (value >= must, value >= aim),
        }
    }

    /// For people: what it must be, and the aim.
    pub(crate) fn shown(self) -> (String, String) {
        match self {
            Self::AtMost { must, aim } => (format!("≤ {must}"), format!("≤ {aim}")),
            Self::AtLeast { must, aim } => (format!("≥ {must}"), format!("≥ {aim}")),
        }
    }
}

/// One line of the table.
pub(crate) struct Ratio {
    pub(crate) name: &'static str,
    pub(crate) bound: Option<Bound>,
    value: fn(&Results) -> Option<f64>,
}

impl Ratio {
    /// The value, when the run has what it needs.
    pub(crate) fn value(&self, results: &Results) -> Option<f64> {
        (self.value)(results)
    }
}

const fn at_most(must: f64, aim: f64) -> Bound {
    Bound::AtMost { must, aim }
}

const fn at_least(must: f64, aim: f64) -> Bound {
    Bound::AtLeast { must, aim }
}

/// `figure` of one subject over that of another.
fn over(
    results: &Results,
    scenario: Scenario,
    figure: fn(&Figures) -> Option<f64>,
    one: Kind,
    other: Kind,
) -> Option<f64> {
    Some(figure(results.get(scenario, one)?)? / figure(results.get(scenario, other)?)?)
}

fn p50(figures: &Figures) -> Option<f64> {
    figures.p50_us
}

fn per_s(figures: &Figures) -> Option<f64> {
    figures.per_s
}

/// All of them, in the order of the table.
pub(crate) const ALL: &[Ratio] = &[
    Ratio {
        name: "alone_vs_floor",
        bound: Some(at_most(1.4, 1.15)),
        value: |r| over(r, Scenario::Alone, p50, Kind::DblockPostgres, Kind::FloorPostgres),
    },
    Ratio {
        name: "alone_mysql_vs_floor",
        bound: Some(at_most(1.4, 1.15)),
        value: |r| over(r, Scenario::AloneMysql, p50, Kind::DblockMysql, Kind::FloorMysql),
    },
    Ratio {
        name: "alone_sqlite_vs_floor",
        bound: Some(at_most(1.6, 1.3)),
        value: |r| {
            over(
                r,
                Scenario::AloneSqlite,
                p50,
                Kind::DblockSqlite,
                Kind::FloorSqlite,
            )
        },
    },
    Ratio {
        name: "keys256_vs_dlpg",
        bound: Some(at_least(3.5, 6.0)),
        value: |r| over(r, Scenario::Keys256, per_s, Kind::DblockPostgres, Kind::Dlpg),
    },
    Ratio {
        name: "keys256_vs_dlpg_try",
        bound: None,
        value: |r| over(r, Scenario::Keys256, per_s, Kind::DblockPostgres, Kind::DlpgTry),
    },
    Ratio {
        name: "keys256_vs_rslock",
        bound: Some(at_least(0.5, 1.0)),
        value: |r| over(r, Scenario::Keys256, per_s, Kind::DblockPostgres, Kind::Rslock),
    },
    Ratio {
        name: "keys64_vs_rslock",
        bound: Some(at_least(0.25, 0.6)),
        value: |r| over(r, Scenario::Keys64, per_s, Kind::DblockPostgres, Kind::Rslock),
    },
    Ratio {
        name: "keys16_vs_dlpg",
        bound: Some(at_least(1.0, 1.5)),
        value: |r| over(r, Scenario::Keys16, per_s, Kind::DblockPostgres, Kind::Dlpg),
    },
    Ratio {
        name: "keys16_vs_dlpg_try",
        bound: None,
        value: |r| over(r, Scenario::Keys16, per_s, Kind::DblockPostgres, Kind::DlpgTry),
    },
    Ratio {
        name: "keys256_mysql_vs_dlmy",
        bound: Some(at_least(0.5, 1.0)),
        value: |r| over(r, Scenario::Keys256Mysql, per_s, Kind::DblockMysql, Kind::Dlmy),
    },
    Ratio {
        name: "hot64_vs_advisory",
        bound: Some(at_least(5.0, 20.0)),
        value: |r| over(r, Scenario::Hot64, per_s, Kind::DblockPostgres, Kind::Advisory),
    },
    Ratio {
        name: "hot64_fairness",
        bound: Some(at_most(1.5, 1.1)),
        value: |r| r.more(Scenario::Hot64, Kind::DblockPostgres, "most_over_fewest"),
    },
    Ratio {
        name: "hot4proc_vs_advisory",
        bound: Some(at_least(3.0, 10.0)),
        value: |r| over(r, Scenario::Hot4proc, per_s, Kind::DblockPostgres, Kind::Advisory),
    },
    Ratio {
        name: "hot4proc_share",
        bound: Some(at_most(2.0, 2.0)),
        value: |r| {
            r.more(
                Scenario::Hot4proc,
                Kind::DblockPostgres,
                "processes_most_over_fewest",
            )
        },
    },
    Ratio {
        name: "handover_vs_advisory",
        bound: Some(at_most(2.0, 1.3)),
        value: |r| over(r, Scenario::Handover, p50, Kind::DblockPostgres, Kind::Advisory),
    },
    Ratio {
        name: "waiters_statements",
        bound: Some(at_most(3.0, 1.5)),
        value: |r| r.get(Scenario::Waiters, Kind::DblockPostgres)?.statements,
    },
    Ratio {
        name: "waiters_statements_mysql",
        bound: Some(at_most(20.0, 20.0)),
        value: |r| r.get(Scenario::Waiters, Kind::DblockMysql)?.statements,
    },
    Ratio {
        name: "held_statements",
        bound: Some(at_most(5.0, 2.0)),
        value: |r| r.get(Scenario::Held, Kind::DblockPostgres)?.statements,
    },
    Ratio {
        name: "held_lost",
        bound: Some(at_most(0.0, 0.0)),
        value: |r| r.more(Scenario::Held, Kind::DblockPostgres, "lost"),
    },
    Ratio {
        name: "million_rows",
        bound: Some(at_most(1.15, 1.05)),
        value: |r| {
            over(
                r,
                Scenario::MillionRows,
                p50,
                Kind::DblockMillion,
                Kind::DblockEmpty,
            )
        },
    },
    Ratio {
        name: "bloat",
        bound: Some(at_most(128.0, 32.0)),
        value: |r| r.more(Scenario::Bloat, Kind::DblockPostgres, "pages"),
    },
    Ratio {
        name: "attribute_ns",
        bound: None,
        value: |r| r.more(Scenario::Attribute, Kind::DblockMemory, "ns"),
    },
    Ratio {
        name: "connections",
        bound: Some(at_most(4.0, 4.0)),
        value: |r| r.most_connections_of_ours(),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_reached_from_their_good_side() {
        let most = Bound::AtMost { must: 1.4, aim: 1.1 };
        assert_eq!(
            [1.5, 1.4, 1.1].map(|value| most.reached(value)),
            [(false, false), (true, false), (true, true)]
        );
        let least = Bound::AtLeast { must: 1.0, aim: 2.0 };
        assert_eq!(
            [0.9, 1.0, 2.0].map(|value| least.reached(value)),
            [(false, false), (true, false), (true, true)]
        );
    }

    #[test]
    fn a_ratio_needs_both_subjects() {
        let mut results = Results::default();
        let of = |p50| Figures {
            p50_us: Some(p50),
            ..Figures::default()
        };
        let alone = ALL
            .iter()
            .find(|ratio| ratio.name == "alone_vs_floor")
            .expect("it is in the table");
        results.set(Scenario::Alone, Kind::DblockPostgres, of(3.0));
        assert_eq!(alone.value(&results), None);
        results.set(Scenario::Alone, Kind::FloorPostgres, of(2.0));
        assert_eq!(alone.value(&results), Some(1.5));
    }
}
