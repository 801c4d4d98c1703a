//! One run: a seed, the world that it makes, and what happens there.

use std::sync::Arc;
use std::time::Duration;

use dblock::{LockError, LockRow};
use tokio::time::{advance, sleep, timeout};

use crate::chance::{ms, pick};
use crate::network::{LATEST, Line};
use crate::plan::{Incident, Plan};
use crate::process::Process;
use crate::show;
use crate::world::{World, tell};

/// All calls end by then: each has a wait, or waits for others that have.
const CALLS_END: Duration = Duration::from_mins(5);

/// Longer than the lease of an adopted ticket.
const LEASES_END: Duration = Duration::from_secs(40);

/// Who waits listens again by then, after the longest pause of the driver.
const LISTENS_AGAIN: Duration = Duration::from_secs(35);

/// A release, its wake-up and a request or two take no longer.
const RELEASE_IS_HEARD: Duration = Duration::from_millis(60);

/// What a run has shown.
pub(crate) struct Shown {
    pub(crate) events: u64,
    /// Without tracing there are none.
    pub(crate) lines: Vec<String>,
    pub(crate) violation: Option<String>,
}

/// Runs a seed on this thread.
pub(crate) fn run(seed: u64, traced: bool) -> Shown {
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs a clock only");
    let world = runtime.block_on(async {
        let world = World::new(Plan::draw(), traced);
        tell!(world, "{:?}", world.plan);
        tokio::select! {
            biased;
            () = world.failed() => {}
            () = live(&world) => {}
        }
        world
    });
    drop(runtime);
    let (events, lines, violation) = world.take_log();
    Shown {
        events,
        lines,
        violation,
    }
}

async fn live(world: &Arc<World>) {
    let mut processes: Vec<_> = (0..world.plan.processes)
        .map(|number| Process::start(world, number, 0))
        .collect();
    for incident in &world.plan.incidents {
        sleep(ms(1..=pick(&[20, 500, 5000]))).await;
        happens(world, *incident, &mut processes).await;
    }
    sleep(ms(0..=pick(&[20, 3000, 10_000]))).await;
    tell!(world, "all faults end");
    world.network().calm_down();
    for process in &mut processes {
        if !process.has_ended(CALLS_END).await {
            world.fail(format!("hangs: callers of {}", process.line));
        }
    }
    sleep(LATEST + world.plan.ttl * 2).await;
    nobody_keeps_a_key(world);
    for process in &processes {
        can_have_each_key(world, process).await;
    }
    if let ([one, other, ..], true) = (&processes[..], world.all_hear()) {
        hears_of_a_release(world, one, other).await;
    }
    for process in processes {
        process.drop_all(world);
    }
    sleep(LEASES_END).await;
    for key in world.plan.keys.iter().map(|plan| &plan.key) {
        if world.server.row(key).is_some_and(|row| row.is_held()) {
            world.fail(format!("kept: {} is held in the end", key.as_str()));
        }
    }
}

async fn happens(world: &Arc<World>, incident: Incident, processes: &mut [Process]) {
    let at = fastrand::usize(..processes.len());
    let length = ms(1..=pick(&[100, 2000, 8000]));
    tell!(world, "{incident:?} of {} for {length:?}", processes[at].line);
    let again = |processes: &mut [Process]| {
        let life = processes[at].line.life + 1;
        std::mem::replace(&mut processes[at], Process::start(world, at, life))
    };
    match incident {
        Incident::Cut => world.network().cut(at, length),
        Incident::Break => processes[at].line.break_connections(),
        Incident::Restart => {
            world.network().take_down(length);
            for process in processes {
                process.line.break_connections();
            }
        }
        Incident::Kill => again(processes).kill(world),
        Incident::Drop => again(processes).drop_all(world),
        Incident::Shutdown => again(processes).shut_down(world, length).await,
        Incident::Deaf => world.network().deafen(at),
        Incident::Jump => {
            world.checks().jumped += length;
            advance(length).await;
        }
        Incident::Revoke => {
            let key = world.plan.keys[fastrand::usize(..world.plan.keys.len())]
                .key
                .as_str();
            // The network may lose it.
            let _ = timeout(length, processes[at].locks.admin().revoke(key)).await;
        }
    }
}

/// When all calls and faults have ended, only who has died, or left in the middle of a fault, may have left a lease.
fn nobody_keeps_a_key(world: &World) {
    for key in world.plan.keys.iter().map(|plan| &plan.key) {
        let Some(row) = world.server.row(key).filter(LockRow::is_held) else {
            continue;
        };
        let checks = world.checks();
        let mut leases = row.live_shared().map(|hold| hold.lease_id).chain([row.lease_id]);
        let lives = |line: &&Arc<Line>| !line.is_dead() && !line.is_ending();
        let living = leases.find_map(|lease| checks.asker(lease).filter(lives).cloned());
        drop(checks);
        if let Some(line) = living {
            world.fail(format!("kept: {line} has not released {}", key.as_str()));
        }
    }
}

/// The network is well again, so who waits is told.
async fn hears_of_a_release(world: &World, one: &Process, other: &Process) {
    let key = world.plan.keys[0].key.as_str();
    let releases = async {
        let guard = one.locks.lock(key).wait(LEASES_END).acquire().await?;
        sleep(LISTENS_AGAIN).await;
        guard.release().await?;
        Ok::<_, LockError>(world.now())
    };
    let waits = async {
        sleep(RELEASE_IS_HEARD).await;
        let guard = other.locks.lock(key).wait(LEASES_END).acquire().await?;
        let entered = world.now();
        guard.release().await?;
        Ok(entered)
    };
    match tokio::try_join!(releases, waits) {
        Ok((freed, entered)) if entered <= freed + RELEASE_IS_HEARD => {}
        Ok((freed, entered)) => {
            let took = entered.saturating_sub(freed);
            world.fail(format!(
                "wake-ups: {} heard of a release after {took:?}",
                other.line
            ));
        }
        Err(error) => world.fail(format!("wake-ups: {}", show::error(&error))),
    }
}

/// Every process that lives gets every key, and can release it.
async fn can_have_each_key(world: &World, process: &Process) {
    for key in world.plan.keys.iter().map(|plan| plan.key.as_str()) {
        let acquired = process.locks.lock(key).wait(LEASES_END).acquire().await;
        let released = match acquired {
            Ok(guard) => guard.release().await,
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            let error = show::error(&error);
            world.fail(format!(
                "kept: {} cannot have {key} in the end: {error}",
                process.line
            ));
        }
    }
}
