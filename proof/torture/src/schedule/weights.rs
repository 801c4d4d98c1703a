//! How often each fault comes, and how it is drawn.

use fastrand::Rng;

use super::{SLOWEST_COMMIT, Stage};
use crate::fault::Fault;
use crate::once::Step;
use crate::target::StoreKind;

/// Draws one fault.
pub(super) type Draw = fn(&mut Rng, &Stage) -> Fault;

const CLOCK_JUMP: Draw = |rng, stage| Fault::ClockJump {
    slot: slot(rng, stage),
    // Up to a day, both ways.
    to_s: rng.i32(-86_400..86_400),
};

/// Between a process and the servers.
const NETWORK: [(u32, Draw); 8] = [
    (8, |rng, stage| Fault::Cut {
        slot: slot(rng, stage),
        ms: rng.u32(1..1_500),
    }),
    (2, |rng, _| Fault::CutAll { ms: rng.u32(1..800) }),
    (12, |rng, stage| Fault::LoseReply {
        slot: slot(rng, stage),
    }),
    (6, |rng, stage| Fault::LoseRequest {
        slot: slot(rng, stage),
    }),
    (8, |rng, stage| Fault::DeliverLate {
        slot: slot(rng, stage),
        ms: rng.u32(50..5_000),
    }),
    (6, |rng, stage| Fault::BlackHole {
        slot: slot(rng, stage),
        ms: rng.u32(200..4_500),
    }),
    (6, |rng, stage| Fault::Deaf {
        slot: slot(rng, stage),
        ms: rng.u32(200..4_500),
    }),
    (6, |rng, stage| Fault::Slow {
        slot: slot(rng, stage),
        delay: rng.u32(10..400),
        ms: rng.u32(500..4_000),
    }),
];

/// To the servers of an ensemble.
const ENSEMBLE: [(u32, Draw); 3] = [
    (4, |rng, _| Fault::KillLeader {
        ms: rng.u32(1..5_000),
    }),
    // From too short to be noticed to longer than every lease.
    (4, |rng, _| Fault::StopLeader {
        ms: rng.u32(300..8_000),
    }),
    (2, |rng, _| Fault::LoseQuorum {
        ms: rng.u32(1..5_000),
    }),
];

/// Before a server that is alone: what names a key there is a transaction by itself, so that it can be repeated as a whole.
const REPEAT: (u32, Draw) = (10, |rng, stage| Fault::Repeat {
    slot: slot(rng, stage),
    ms: rng.bool().then(|| rng.u32(1..5_000)),
});

const SERVER_CLOCK: (u32, Draw) = (20, |rng, stage| Fault::ServerClock {
    to_ms: stage.apart.map_or(0, |apart| apart.jump(rng)),
});

/// To a server that is alone.
const SERVER: [(u32, Draw); 5] = [
    (6, |rng, _| Fault::Terminate {
        all: rng.u8(..4) == 0,
    }),
    (2, |_, _| Fault::KillServer),
    (2, |_, _| Fault::StopServer),
    (6, |rng, _| Fault::SlowCommits {
        ms: rng.u32(500..SLOWEST_COMMIT),
    }),
    (2, |rng, _| Fault::ExhaustServer {
        ms: rng.u32(300..2_500),
    }),
];

/// To the disk of a server or a file.
const DISK: [(u32, Draw); 4] = [
    (6, |_, _| Fault::LosePower),
    (4, |rng, _| Fault::FillDisk {
        ms: rng.u32(500..4_000),
    }),
    (2, |rng, _| Fault::FailDisk {
        ms: rng.u32(200..2_500),
    }),
    (2, |rng, _| Fault::ReadOnlyDisk {
        ms: rng.u32(200..2_500),
    }),
];

/// How often each fault comes, in relation to the others.
pub(super) fn weights(stage: &Stage) -> Vec<(u32, Draw)> {
    if stage.lies {
        return NETWORK.into_iter().chain([(40, REPEAT.1)]).collect();
    }
    let mut weights: Vec<(u32, Draw)> = vec![
        (10, |rng, stage| Fault::Kill {
            slot: slot(rng, stage),
        }),
        (8, |rng, stage| Fault::Pause {
            slot: slot(rng, stage),
            // Most are longer than the leases of 1 to 3 seconds.
            ms: if rng.u8(..4) == 0 {
                rng.u32(200..1_000)
            } else {
                rng.u32(1_200..4_500)
            },
        }),
        (6, |rng, stage| Fault::ForceRelease {
            key: rng.usize(..stage.keys),
        }),
        (4, |rng, stage| Fault::Revoke {
            key: rng.usize(..stage.keys),
        }),
    ];
    if stage.store.has_bank() {
        weights.push((4, |rng, stage| Fault::KillInRun {
            slot: slot(rng, stage),
            step: Step::ALL[rng.usize(..Step::ALL.len())],
        }));
        weights.push((4, |rng, stage| Fault::ExhaustPool {
            slot: slot(rng, stage),
            ms: rng.u32(300..3_000),
        }));
    }
    if stage.disk {
        weights.extend(DISK);
    }
    if stage.store == StoreKind::Sqlite {
        weights.push((8, |rng, _| Fault::LockFile {
            ms: if rng.u8(..4) == 0 {
                rng.u32(1_000..4_000)
            } else {
                rng.u32(50..1_000)
            },
        }));
        return weights;
    }
    if stage.store == StoreKind::RedisSentinel {
        weights.push((8, |rng, _| Fault::FailOver {
            stop: rng.bool(),
            // From too short for a fail-over to long enough.
            ms: rng.u32(500..8_000),
        }));
        if stage.clocks {
            weights.push((4, CLOCK_JUMP));
        }
        return weights;
    }
    weights.extend(NETWORK);
    if stage.store.has_bank() {
        weights.push((4, |rng, stage| Fault::KillInTransaction {
            slot: slot(rng, stage),
        }));
    }
    if stage.apart.is_some() {
        weights.extend([REPEAT, SERVER_CLOCK]);
        return weights;
    }
    if stage.store.is_ensemble() {
        weights.extend(ENSEMBLE);
    } else {
        weights.extend(SERVER);
        weights.push(REPEAT);
    }
    if stage.clocks {
        weights.push((6, CLOCK_JUMP));
    }
    weights
}

fn slot(rng: &mut Rng, stage: &Stage) -> usize {
    rng.usize(..stage.slots)
}
