//! What the logs of all processes say together: who was inside when.

use std::time::Duration;

use dblock_tests::hot_account::{Event, Log, TTL};

use super::crew::Former;
use super::{FULL_LENGTH, PROCESSES};

/// A stay under the lock.
#[derive(Debug, Clone)]
struct Stay {
    seat: usize,
    fence_token: i64,
    waited: Duration,
    enter_ns: i64,
    /// When it ended; for a stay cut by a kill, when the process was surely dead.
    end_ns: i64,
    cut: bool,
}

/// What the logs say together.
pub(crate) struct History {
    /// In the order of their entries.
    stays: Vec<Stay>,
    kills: usize,
    fault: Vec<String>,
}

impl History {
    pub(crate) fn read(former: &[Former]) -> Self {
        let mut history = Self {
            stays: Vec::new(),
            kills: former.iter().filter(|former| former.killed_ns.is_some()).count(),
            fault: Vec::new(),
        };
        for former in former {
            history.add(former, Log::read(&former.log).unwrap());
        }
        history.stays.sort_by_key(|stay| stay.enter_ns);
        history
    }

    fn add(&mut self, former: &Former, log: Vec<Event>) {
        let mut open: Vec<Stay> = Vec::new();
        for event in log {
            match event {
                Event::Enter {
                    at_ns,
                    fence_token,
                    waited_us,
                } => open.push(Stay {
                    seat: former.seat,
                    fence_token,
                    waited: Duration::from_micros(waited_us.unsigned_abs()),
                    enter_ns: at_ns,
                    end_ns: at_ns,
                    cut: false,
                }),
                Event::Leave { at_ns, fence_token } => {
                    let at = open.iter().position(|stay| stay.fence_token == fence_token);
                    let mut stay = open.swap_remove(at.expect("a body ends after it began"));
                    stay.end_ns = at_ns;
                    self.stays.push(stay);
                }
                Event::Fault(text) => self.fault.push(text),
            }
        }
        self.stays.extend(open.into_iter().map(|stay| {
            Stay {
                end_ns: former
                    .killed_ns
                    .expect("only a killed process leaves a body open"),
                cut: true,
                ..stay
            }
        }));
    }

    fn cut(&self) -> usize {
        self.stays.iter().filter(|stay| stay.cut).count()
    }

    fn takeovers(&self) -> impl Iterator<Item = Duration> {
        let pairs = self.stays.windows(2).filter(|pair| pair[0].cut);
        pairs.map(|pair| Duration::from_nanos((pair[1].enter_ns - pair[0].end_ns).unsigned_abs()))
    }

    pub(crate) fn check(&self, length: Duration) {
        for pair in self.stays.windows(2) {
            let [earlier, later] = pair else { unreachable!() };
            assert!(
                earlier.end_ns <= later.enter_ns,
                "two were inside: {earlier:?} and {later:?}"
            );
            assert!(
                earlier.fence_token < later.fence_token,
                "a token did not grow: {earlier:?}, then {later:?}"
            );
        }
        let cut = self.stays.iter().filter(|stay| stay.cut).count();
        assert!(cut > 0, "no process was killed under the lock");
        assert_eq!(
            self.takeovers().count(),
            cut,
            "a dead process' lock was not taken over"
        );
        // A short run is too short to tell.
        for seat in (0..PROCESSES).filter(|_| length >= FULL_LENGTH) {
            assert!(
                self.stays.iter().any(|stay| stay.seat == seat),
                "process {seat} never entered"
            );
        }
    }

    /// From the end of each body to the next, where both were `in_one_process` or not.
    fn handovers(&self, in_one_process: bool) -> Vec<Duration> {
        let pairs = self.stays.windows(2).filter(|pair| !pair[0].cut);
        let mut times: Vec<_> = pairs
            .filter(|pair| (pair[0].seat == pair[1].seat) == in_one_process)
            .map(|pair| Duration::from_nanos((pair[1].enter_ns - pair[0].end_ns).unsigned_abs()))
            .collect();
        times.sort();
        times
    }

    pub(crate) fn print(&self, store: &str, length: Duration) {
        let ms = |times: &[Duration], at: usize| times.get(at).map_or(0, Duration::as_millis);
        let (within, across) = (self.handovers(true), self.handovers(false));
        let mut inside: Vec<_> = self
            .stays
            .iter()
            .map(|stay| Duration::from_nanos((stay.end_ns - stay.enter_ns).unsigned_abs()))
            .collect();
        inside.sort();
        let mut waits: Vec<_> = self.stays.iter().map(|stay| stay.waited).collect();
        waits.sort();
        let mut takeovers: Vec<_> = self.takeovers().collect();
        takeovers.sort();
        let shares = (0..PROCESSES).map(|seat| self.stays.iter().filter(|stay| stay.seat == seat).count());
        eprintln!("{store}, {PROCESSES} processes, {length:?}:");
        eprintln!(
            "  {} entries; by process {:?}",
            waits.len(),
            shares.collect::<Vec<_>>()
        );
        eprintln!(
            "  {} killed, {} of them inside; taken over after {} to {} ms (ttl {TTL:?})",
            self.kills,
            self.cut(),
            ms(&takeovers, 0),
            ms(&takeovers, takeovers.len().saturating_sub(1)),
        );
        eprintln!(
            "  waits: median {} ms, longest {} ms",
            ms(&waits, waits.len() / 2),
            ms(&waits, waits.len().saturating_sub(1))
        );
        for (what, times) in [
            ("bodies", &inside),
            ("hand-overs in a process", &within),
            ("hand-overs to another", &across),
        ] {
            eprintln!(
                "  {} {what}: median {} ms, longest {} ms, in all {} ms",
                times.len(),
                ms(times, times.len() / 2),
                ms(times, times.len().saturating_sub(1)),
                times.iter().sum::<Duration>().as_millis(),
            );
        }
        eprintln!("  calls that failed and were repeated: {}", self.fault.len());
        for text in self.fault.iter().take(5) {
            eprintln!("    {text}");
        }
    }
}
