//! When each fault comes: a function of the seed, so that a seed repeats a run as far as the machine's timing
//! allows.

mod weights;

use std::time::Duration;

use fastrand::Rng;

use crate::clocks::Apart;
use crate::fault::Fault;
use crate::once::Step;
use crate::target::StoreKind;

use self::weights::weights;

/// The time from one fault to the next, in milliseconds: 0.6 seconds on average, so that 20 minutes bring
/// well over 1,000.
const GAP: std::ops::Range<u64> = 200..1_000;

/// Nothing happens before the processes are at work.
const HEAD_START: Duration = Duration::from_secs(1);

/// The time from one of the first `KillInRun` to the next.
const STEPS_APART: Duration = Duration::from_secs(2);

/// The circumstances that a schedule is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stage {
    pub(crate) store: StoreKind,
    pub(crate) slots: usize,
    pub(crate) keys: usize,
    /// The clocks of the processes can be set.
    pub(crate) clocks: bool,
    /// Nothing but the network fails.
    pub(crate) lies: bool,
    /// All clocks run at rates of their own.
    pub(crate) apart: Option<Apart>,
    /// The disk of the server can fail.
    pub(crate) disk: bool,
}

/// A fault and when it comes, counted from the start of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
}

/// The slowest commit, in milliseconds, when nothing but commits is slow.
const SLOWEST_COMMIT: u32 = 2_000;

/// The same for an ensemble. Were it longer, the ensemble would choose another leader.
const SLOWEST_COMMIT_OF_AN_ENSEMBLE: u32 = 800;

/// The slow commits of a time without other faults: one after the other, with pauses in which those that
/// found their row locked get through.
pub(crate) fn slow_commits(seed: u64, store: StoreKind, length: Duration) -> Vec<Planned> {
    const PAUSE: Duration = Duration::from_millis(500);
    if store == StoreKind::RedisSentinel {
        // Sentinels decide which server is the primary.
        return Vec::new();
    }
    let slowest = if store.is_ensemble() {
        SLOWEST_COMMIT_OF_AN_ENSEMBLE
    } else {
        SLOWEST_COMMIT
    };
    let mut rng = Rng::with_seed(seed);
    let mut at = Duration::ZERO;
    let mut plan = Vec::new();
    while at + Duration::from_millis(slowest.into()) < length {
        let ms = rng.u32(slowest / 4..slowest);
        let fault = if store == StoreKind::Sqlite {
            Fault::LockFile { ms }
        } else {
            Fault::SlowCommits { ms }
        };
        plan.push(Planned { at, fault });
        at += Duration::from_millis(ms.into()) + PAUSE;
    }
    plan
}

/// The faults of the first `length` of a run.
pub(crate) fn plan(seed: u64, stage: &Stage, length: Duration) -> Vec<Planned> {
    let mut rng = Rng::with_seed(seed);
    let weights = weights(stage);
    let sum: u32 = weights.iter().map(|(weight, _)| weight).sum();
    let mut at = HEAD_START;
    let mut plan = Vec::new();
    while at < length {
        let mut drawn = rng.u32(..sum);
        let chosen = weights.iter().find(|(weight, _)| {
            let found = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            found
        });
        let (_, draw) = chosen.expect("what is drawn is below the sum");
        let fault = draw(&mut rng, stage);
        plan.push(Planned { at, fault });
        at += Duration::from_millis(rng.u64(GAP));
    }
    // So that even a short run has a kill at each step.
    let steps = Step::ALL.into_iter().zip(0..).map(|(step, n)| Planned {
        at: HEAD_START + STEPS_APART * n,
        fault: Fault::KillInRun {
            slot: n as usize % stage.slots,
            step,
        },
    });
    let kills = stage.store.has_bank() && !stage.lies;
    plan.extend(steps.filter(|planned| kills && planned.at < length));
    plan.sort_by_key(|planned| planned.at);
    plan
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MINUTES: Duration = Duration::from_mins(20);

    fn stage(store: StoreKind) -> Stage {
        Stage {
            store,
            slots: 4,
            keys: 6,
            clocks: store != StoreKind::Sqlite,
            lies: false,
            apart: None,
            disk: store == StoreKind::Mysql,
        }
    }

    #[test]
    fn a_seed_repeats_its_schedule() {
        for store in StoreKind::ALL {
            let first = plan(7, &stage(store), MINUTES);
            assert_eq!(first, plan(7, &stage(store), MINUTES));
            assert_ne!(first, plan(8, &stage(store), MINUTES));
            // A longer run begins like a shorter one.
            let short = plan(7, &stage(store), MINUTES / 4);
            assert_eq!(first[..short.len()], short);
        }
    }

    #[test]
    fn twenty_minutes_bring_over_a_thousand_faults_of_every_kind() {
        for (store, kinds) in [
            (StoreKind::Postgres, 26),
            (StoreKind::Mysql, 30),
            (StoreKind::Sqlite, 10),
            (StoreKind::Redis, 20),
            (StoreKind::RedisSentinel, 7),
            (StoreKind::Zookeeper, 16),
            (StoreKind::Etcd, 16),
        ] {
            let plan = plan(1, &stage(store), MINUTES);
            assert!(plan.len() > 1_500, "{store:?}: {}", plan.len());
            let names: BTreeSet<_> = plan.iter().map(|planned| planned.fault.name()).collect();
            assert_eq!(names.len(), kinds, "{store:?}: {names:?}");
        }
    }

    #[test]
    fn lies_are_those_of_the_network() {
        let stage = Stage {
            lies: true,
            ..stage(StoreKind::Postgres)
        };
        let plan = plan(1, &stage, MINUTES);
        let names: BTreeSet<_> = plan.iter().map(|planned| planned.fault.name()).collect();
        assert_eq!(names.len(), 10, "{names:?}");
        assert!(names.iter().all(|name| !name.contains("kill")), "{names:?}");
    }

    #[test]
    fn clocks_that_are_apart_are_set_by_nobody_else() {
        let stage = Stage {
            apart: Some(Apart::Within),
            ..stage(StoreKind::Postgres)
        };
        let plan = plan(1, &stage, MINUTES);
        let any = |is: fn(&Fault) -> bool| plan.iter().any(|planned| is(&planned.fault));
        assert!(any(|fault| matches!(fault, Fault::ServerClock { .. })));
        // A server that starts anew would begin with the host's time.
        assert!(!any(
            |fault| fault.is_an_outage() || matches!(fault, Fault::ClockJump { .. })
        ));
    }

    #[test]
    fn slow_commits_follow_one_another_and_end_in_time() {
        assert!(slow_commits(1, StoreKind::RedisSentinel, Duration::from_secs(12)).is_empty());
        for store in StoreKind::ALL {
            let plan = slow_commits(1, store, Duration::from_secs(12));
            let ends = plan.iter().map(|planned| match planned.fault {
                Fault::SlowCommits { ms } | Fault::LockFile { ms } => {
                    planned.at + Duration::from_millis(ms.into())
                }
                _ => panic!("{planned:?}"),
            });
            let ends: Vec<_> = ends.collect();
            assert!(plan.len() >= 4 && ends.iter().all(|end| *end <= Duration::from_secs(12)));
            assert!(plan.iter().skip(1).zip(&ends).all(|(next, end)| next.at > *end));
        }
    }

    #[test]
    fn the_clock_of_sqlite_is_the_hosts_and_stays() {
        let plan = plan(1, &stage(StoreKind::Sqlite), MINUTES);
        assert!(
            plan.iter()
                .all(|planned| !matches!(planned.fault, Fault::ClockJump { .. }))
        );
    }
}
