//! The ratios that count, and what they must be.

use crate::measure::{Figures, spread_of_median};
use crate::results::Results;
use crate::scenario::Scenario;
use crate::subject::Kind;

/// Which side of a bound is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    AtMost { must: f64, aim: f64 },
    AtLeast { must: f64, aim: f64 },
}

/// The verdict of a value about its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Aim,
    Must,
    Missed,
    /// The must lies within the value's spread: another run may say something else.
    TooNoisy,
}

impl Bound {
    /// Judges a value that may as well be larger or smaller by `spread`.
    pub(crate) fn judge(self, value: f64, spread: f64) -> Verdict {
        let (must, aim, sign) = match self {
            Self::AtMost { must, aim } => (must, aim, 1.0),
            Self::AtLeast { must, aim } => (must, aim, -1.0),
        };
        let over = |bound: f64, value: f64| (value - bound) * sign > 0.0;
        match (
            over(must, sign.mul_add(-spread, value)),
            over(must, sign.mul_add(spread, value)),
        ) {
            (true, _) => Verdict::Missed,
            (false, true) => Verdict::TooNoisy,
            (false, false) if over(aim, value) => Verdict::Must,
            (false, false) => Verdict::Aim,
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

type Figure = fn(&Figures) -> Option<f64>;

/// One line of the table.
pub(crate) struct Ratio {
    pub(crate) name: &'static str,
    pub(crate) bound: Option<Bound>,
    source: Source,
}

/// Where a value comes from.
enum Source {
    /// A figure of one subject.
    Of(Scenario, Kind, Figure),
    /// The same figure of two subjects: the first over the second.
    Over(Scenario, Figure, Kind, Kind),
    /// Of every process of ours, the most connections.
    Connections,
}

/// A value, and how sure it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    /// Twice the standard error, estimated from how far the rounds differ. 0 with a single round.
    pub(crate) spread: f64,
}

impl Ratio {
    /// The value, when the run has what it needs.
    pub(crate) fn measured(&self, results: &Results) -> Option<Measured> {
        let of_rounds: Vec<_> = (0..)
            .map_while(|round| self.value(&results.round(round)))
            .collect();
        Some(Measured {
            value: self.value(results)?,
            spread: 2.0 * spread_of_median(&of_rounds),
        })
    }

    fn value(&self, results: &Results) -> Option<f64> {
        match self.source {
            Source::Of(scenario, kind, figure) => figure(&results.get(scenario, kind)?),
            Source::Over(scenario, figure, one, other) => {
                Some(figure(&results.get(scenario, one)?)? / figure(&results.get(scenario, other)?)?)
            }
            Source::Connections => results.most_connections_of_ours(),
        }
    }

    /// The value that a caller of ours sees there.
    pub(crate) fn seen_by_a_caller(&self, results: &Results) -> Option<Figures> {
        match self.source {
            Source::Of(scenario, kind, _) | Source::Over(scenario, _, kind, _) => results.get(scenario, kind),
            Source::Connections => None,
        }
    }

    /// Whether it is made of this.
    pub(crate) fn needs(&self, scenario: Scenario, kind: Kind) -> bool {
        match self.source {
            Source::Of(at, of, _) => (at, of) == (scenario, kind),
            Source::Over(at, _, one, other) => at == scenario && [one, other].contains(&kind),
            Source::Connections => false,
        }
    }
}

const fn ratio(name: &'static str, bound: Option<Bound>, source: Source) -> Ratio {
    Ratio { name, bound, source }
}

#[expect(clippy::unnecessary_wraps, reason = "beside ratios without a bound")]
const fn at_most(must: f64, aim: f64) -> Option<Bound> {
    Some(Bound::AtMost { must, aim })
}

#[expect(clippy::unnecessary_wraps, reason = "beside ratios without a bound")]
const fn at_least(must: f64, aim: f64) -> Option<Bound> {
    Some(Bound::AtLeast { must, aim })
}

const P50: Figure = |figures| figures.p50_us;
const PER_S: Figure = |figures| figures.per_s;
const LONGEST_S: Figure = |figures| Some(figures.named("longest_wait_ms")? / 1000.0);
const STATEMENTS: Figure = |figures| figures.statements;

/// All of them, in the order of the table.
#[rustfmt::skip]
pub(crate) const ALL: &[Ratio] = {
    use Kind::{
        Advisory, AdvisoryShared, CommitNotify, DblockDeaf, DblockEmpty, DblockEtcd, DblockLimit8, DblockMemory, DblockMemoryRecorded, DblockMillion, DblockMysql,
        DblockPostgres, DblockRecorded, DblockRedis, DblockShared, DblockSqlite, DblockTwo, DblockZookeeper, Dlmy, Dlpg, DlpgTry, EtcdRecipe, FloorMysql, FloorPostgres,
        FloorSqlite, OnceLock, OnceRead, OnceReplay, OnceRun, Rslock, UnitForUpdate, UnitForUpdateMysql, UnitLock, UnitLockMysql,
        UnitTransaction, UnitTransaction100ms, UnitTransaction100msMysql, UnitTransaction1ms, UnitTransaction1msMysql,
        UnitTransactionMinute, UnitTransactionMinuteMysql, UnitTransactionMysql, ZookeeperRecipe,
    };
    use Scenario::{
        Alone, AloneMysql, AloneSqlite, Attribute, Bloat, Handover, Held, Hot4proc, Hot64, Keys16, Keys256,
        Keys256Mysql, Keys64, Limit8, MillionRows, OnceAlone, OnceReplays64, Polling, Shared64, TxAlone, TxAlone1ms, TxAloneMysql, TxEight, TxHot4proc,
        TxHot64, TxKeys64, TxKilled, TxNewKeys, TxTwo, Waiters,
    };
    use Source::{Connections, Of, Over};

    &[
        ratio("alone_vs_floor", at_most(1.4, 1.2), Over(Alone, P50, DblockPostgres, FloorPostgres)),
        ratio("alone_mysql_vs_floor", at_most(1.4, 1.2), Over(AloneMysql, P50, DblockMysql, FloorMysql)),
        ratio("alone_sqlite_vs_floor", at_most(1.4, 1.2), Over(AloneSqlite, P50, DblockSqlite, FloorSqlite)),
        ratio("multi2_vs_one", at_most(1.3, 1.3), Over(Alone, P50, DblockTwo, DblockPostgres)),
        ratio("attribute_ns", at_most(10_000.0, 3_000.0), Of(Attribute, DblockMemory, |figures| figures.named("ns"))),
        ratio("attribute_recorded", at_most(1.05, 1.05), Over(Attribute, |figures| figures.named("ns"), DblockMemoryRecorded, DblockMemory)),
        ratio("alone_recorded", at_most(1.05, 1.05), Over(Alone, P50, DblockRecorded, DblockPostgres)),
        ratio("keys16_vs_dlpg", at_least(1.2, 1.5), Over(Keys16, PER_S, DblockPostgres, Dlpg)),
        ratio("keys16_vs_dlpg_try", at_least(0.8, 1.0), Over(Keys16, PER_S, DblockPostgres, DlpgTry)),
        ratio("keys64_vs_rslock", at_least(0.4, 0.7), Over(Keys64, PER_S, DblockPostgres, Rslock)),
        ratio("keys256_vs_dlpg", at_least(3.5, 6.0), Over(Keys256, PER_S, DblockPostgres, Dlpg)),
        ratio("keys256_vs_dlpg_try", None, Over(Keys256, PER_S, DblockPostgres, DlpgTry)),
        ratio("keys256_vs_rslock", at_least(0.6, 1.0), Over(Keys256, PER_S, DblockPostgres, Rslock)),
        ratio("keys256_mysql_vs_dlmy", at_least(0.7, 1.0), Over(Keys256Mysql, PER_S, DblockMysql, Dlmy)),
        ratio("hot64_vs_advisory", at_least(17.0, 40.0), Over(Hot64, PER_S, DblockPostgres, Advisory)),
        ratio("hot64_fairness", at_most(1.1, 1.1), Of(Hot64, DblockPostgres, |figures| figures.named("most_over_fewest"))),
        ratio("shared64_vs_rwlock_advisory", at_least(20.0, 40.0), Over(Shared64, PER_S, DblockShared, AdvisoryShared)),
        ratio("limit8_64tasks_share", at_most(1.3, 1.1), Of(Limit8, DblockLimit8, |figures| figures.named("most_over_fewest"))),
        ratio("hot4proc_vs_advisory", at_least(8.0, 10.0), Over(Hot4proc, PER_S, DblockPostgres, Advisory)),
        ratio("hot4proc_share", at_most(1.5, 1.5), Of(Hot4proc, DblockPostgres, |figures| figures.named("processes_most_over_fewest"))),
        ratio("hot4proc_mysql_share", at_most(2.0, 2.0), Of(Hot4proc, DblockMysql, |figures| figures.named("processes_most_over_fewest"))),
        ratio("handover_vs_commit", at_most(1.5, 1.2), Over(Handover, P50, DblockPostgres, CommitNotify)),
        ratio("handover_vs_advisory", at_most(2.5, 1.3), Over(Handover, P50, DblockPostgres, Advisory)),
        ratio("polling_among_listeners", at_most(3.0, 3.0), Of(Polling, DblockDeaf, |figures| figures.named("longest_wait_s"))),
        ratio("waiters_statements", at_most(2.5, 1.5), Of(Waiters, DblockPostgres, STATEMENTS)),
        ratio("waiters_statements_mysql", at_most(20.0, 20.0), Of(Waiters, DblockMysql, STATEMENTS)),
        ratio("held_statements", at_most(2.0, 1.0), Of(Held, DblockPostgres, STATEMENTS)),
        ratio("held_lost", at_most(0.0, 0.0), Of(Held, DblockPostgres, |figures| figures.named("lost"))),
        ratio("million_rows", at_most(1.1, 1.05), Over(MillionRows, P50, DblockMillion, DblockEmpty)),
        ratio("bloat", at_most(32.0, 32.0), Of(Bloat, DblockPostgres, |figures| figures.named("pages"))),
        ratio("tx_alone_vs_for_update", at_most(1.35, 1.1), Over(TxAlone, P50, UnitTransaction, UnitForUpdate)),
        ratio("tx_alone_1ms_vs_for_update", at_most(1.05, 1.05), Over(TxAlone1ms, P50, UnitTransaction, UnitForUpdate)),
        ratio("tx_alone_mysql_vs_for_update", at_most(1.8, 1.8), Over(TxAloneMysql, P50, UnitTransactionMysql, UnitForUpdateMysql)),
        ratio("tx_new_keys_vs_for_update", at_most(1.8, 1.8), Over(TxNewKeys, P50, UnitTransaction, UnitForUpdate)),
        ratio("tx_keys64_vs_for_update", at_least(0.75, 0.95), Over(TxKeys64, PER_S, UnitTransaction, UnitForUpdate)),
        ratio("tx_hot64_vs_for_update", at_least(0.9, 1.3), Over(TxHot64, PER_S, UnitTransaction, UnitForUpdate)),
        ratio("tx_hot4proc_vs_for_update", at_least(0.4, 0.4), Over(TxHot4proc, PER_S, UnitTransaction, UnitForUpdate)),
        ratio("tx_alone_vs_lock", at_most(1.0, 1.0), Over(TxAlone, P50, UnitTransaction, UnitLock)),
        ratio("tx_alone_1ms_vs_lock", at_most(1.0, 1.0), Over(TxAlone1ms, P50, UnitTransaction, UnitLock)),
        ratio("tx_alone_mysql_vs_lock", at_most(1.0, 1.0), Over(TxAloneMysql, P50, UnitTransactionMysql, UnitLockMysql)),
        ratio("tx_new_keys_vs_lock", at_most(1.0, 1.0), Over(TxNewKeys, P50, UnitTransaction, UnitLock)),
        ratio("tx_keys64_vs_lock", at_least(1.0, 1.0), Over(TxKeys64, PER_S, UnitTransaction, UnitLock)),
        ratio("tx_hot64_vs_lock", at_least(1.0, 1.0), Over(TxHot64, PER_S, UnitTransaction, UnitLock)),
        ratio("tx_hot4proc_vs_lock", at_least(1.0, 1.0), Over(TxHot4proc, PER_S, UnitTransaction, UnitLock)),
        ratio("tx_two_1ms", at_most(3.0, 3.0), Of(TxTwo, UnitTransaction1ms, LONGEST_S)),
        ratio("tx_two_100ms", at_most(3.0, 3.0), Of(TxTwo, UnitTransaction100ms, LONGEST_S)),
        ratio("tx_two_1ms_mysql", at_most(3.0, 3.0), Of(TxTwo, UnitTransaction1msMysql, LONGEST_S)),
        ratio("tx_two_100ms_mysql", at_most(3.0, 3.0), Of(TxTwo, UnitTransaction100msMysql, LONGEST_S)),
        ratio("tx_eight_1ms", at_most(8.0, 8.0), Of(TxEight, UnitTransaction1ms, LONGEST_S)),
        ratio("tx_eight_100ms", at_most(8.0, 8.0), Of(TxEight, UnitTransaction100ms, LONGEST_S)),
        ratio("tx_eight_1ms_mysql", at_most(8.0, 8.0), Of(TxEight, UnitTransaction1msMysql, LONGEST_S)),
        ratio("tx_eight_100ms_mysql", at_most(8.0, 8.0), Of(TxEight, UnitTransaction100msMysql, LONGEST_S)),
        ratio("tx_killed", at_most(1.0, 1.0), Of(TxKilled, UnitTransactionMinute, |figures| figures.named("freed_s"))),
        ratio("tx_killed_mysql", at_most(1.0, 1.0), Of(TxKilled, UnitTransactionMinuteMysql, |figures| figures.named("freed_s"))),
        ratio("once_vs_lock", at_most(1.5, 1.3), Over(OnceAlone, P50, OnceRun, OnceLock)),
        ratio("replays64_vs_read", at_least(0.8, 1.0), Over(OnceReplays64, PER_S, OnceReplay, OnceRead)),
        ratio("redis_alone_vs_rslock", at_most(1.7, 1.7), Over(Alone, P50, DblockRedis, Rslock)),
        ratio("redis_keys256_vs_rslock", at_least(0.75, 0.75), Over(Keys256, PER_S, DblockRedis, Rslock)),
        ratio("redis_hot64_vs_rslock", at_least(60.0, 60.0), Over(Hot64, PER_S, DblockRedis, Rslock)),
        ratio("etcd_alone_vs_recipe", at_most(1.5, 1.5), Over(Alone, P50, DblockEtcd, EtcdRecipe)),
        ratio("etcd_keys64_vs_recipe", at_least(2.0, 2.0), Over(Keys64, PER_S, DblockEtcd, EtcdRecipe)),
        ratio("etcd_handover_vs_recipe", at_most(0.2, 0.2), Over(Handover, P50, DblockEtcd, EtcdRecipe)),
        ratio("zk_alone_vs_recipe", at_most(1.7, 1.7), Over(Alone, P50, DblockZookeeper, ZookeeperRecipe)),
        ratio("zk_keys64_vs_recipe", None, Over(Keys64, PER_S, DblockZookeeper, ZookeeperRecipe)),
        ratio("zk_handover_vs_recipe", at_most(1.2, 1.2), Over(Handover, P50, DblockZookeeper, ZookeeperRecipe)),
        ratio("connections", at_most(4.0, 4.0), Connections),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_reached_from_their_good_side() {
        let most = Bound::AtMost { must: 1.4, aim: 1.1 };
        assert_eq!(
            [1.5, 1.4, 1.1].map(|value| most.judge(value, 0.0)),
            [Verdict::Missed, Verdict::Must, Verdict::Aim]
        );
        let least = Bound::AtLeast { must: 1.0, aim: 2.0 };
        assert_eq!(
            [0.9, 1.0, 2.0].map(|value| least.judge(value, 0.0)),
            [Verdict::Missed, Verdict::Must, Verdict::Aim]
        );
    }

    #[test]
    fn a_bound_within_the_spread_is_not_judged() {
        let most = Bound::AtMost { must: 1.4, aim: 1.1 };
        assert_eq!(
            [1.6, 1.45, 1.35, 1.2, 1.0].map(|value| most.judge(value, 0.1)),
            [
                Verdict::Missed,
                Verdict::TooNoisy,
                Verdict::TooNoisy,
                Verdict::Must,
                Verdict::Aim
            ]
        );
        let least = Bound::AtLeast { must: 1.0, aim: 2.0 };
        assert_eq!(
            [0.8, 0.95, 1.05, 1.5].map(|value| least.judge(value, 0.1)),
            [
                Verdict::Missed,
                Verdict::TooNoisy,
                Verdict::TooNoisy,
                Verdict::Must
            ]
        );
    }

    #[test]
    fn a_ratio_needs_both_subjects_and_knows_how_far_its_rounds_differ() {
        let mut results = Results::default();
        let of = |p50| Figures {
            p50_us: Some(p50),
            ..Figures::default()
        };
        let alone = &ALL[0];
        assert_eq!(alone.name, "alone_vs_floor");
        results.set(
            Scenario::Alone,
            Kind::DblockPostgres,
            [3.0, 3.0, 3.0].map(of).to_vec(),
        );
        assert_eq!(alone.measured(&results), None);
        results.set(
            Scenario::Alone,
            Kind::FloorPostgres,
            [2.0, 2.0, 2.0].map(of).to_vec(),
        );
        let sure = alone.measured(&results).expect("both are there");
        assert_eq!(
            sure,
            Measured {
                value: 1.5,
                spread: 0.0
            }
        );
        results.set(
            Scenario::Alone,
            Kind::FloorPostgres,
            [1.0, 2.0, 3.0].map(of).to_vec(),
        );
        let unsure = alone.measured(&results).expect("both are there");
        assert!(
            (unsure.value - 1.5).abs() < 1e-9 && unsure.spread > 0.5,
            "{unsure:?}"
        );
    }
}
