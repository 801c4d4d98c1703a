//! Eight OS processes of eight tasks each on one key, and now and then the holder is killed with SIGKILL:
//! no overlap, no lost update, tokens only grow, and no row is held after everyone left.
//!
//! Runs for `DBLOCK_PROCESS_SECONDS` on each store, 6 by default; 30 is the full run. The servers are those
//! of `DBLOCK_TEST_POSTGRES_URL` and `DBLOCK_TEST_MYSQL_URL`; a store without one is left out, loudly, or
//! fails when `DBLOCK_TEST_REQUIRE_SERVERS=1`. `--nocapture` shows the figures.
//!
//! Overlaps are found by time: every process writes when a body begins and ends, on a clock that they share.
//! Lost updates are found by money: the balance must be the sum of the updates that were committed.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use dblock::{InspectFilter, LockManager};
use dblock_tests::hot_account::{Account, Event, Log, TTL, monotonic_ns};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::Mutex;
use tokio::time::timeout;

const PROCESSES: usize = 8;

/// From one kill to the next, the takeover included.
const KILL_EVERY: Duration = Duration::from_secs(4);

/// The full run.
const FULL_LENGTH: Duration = Duration::from_secs(30);

/// How long a process may take to finish its last bodies and go.
const FAREWELL: Duration = Duration::from_secs(20);

/// One store at a time, so that the figures mean something.
static TURN: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("hot.db").display());
    torture("SQLite", &url).await;
}

#[tokio::test]
async fn postgres() {
    let Some(server) = server("DBLOCK_TEST_POSTGRES_URL") else {
        return;
    };
    let name = fresh_name();
    let mut connection = PgConnection::connect(&server).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
    torture("PostgreSQL", &with_database(&server, &name)).await;
    let remove = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
    sqlx::raw_sql(remove).execute(&mut connection).await.unwrap();
}

#[tokio::test]
async fn mysql() {
    let Some(server) = server("DBLOCK_TEST_MYSQL_URL") else {
        return;
    };
    let name = fresh_name();
    let mut connection = MySqlConnection::connect(&server).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
    torture("MySQL", &with_database(&server, &name)).await;
    let remove = AssertSqlSafe(format!("DROP DATABASE {name}"));
    sqlx::raw_sql(remove).execute(&mut connection).await.unwrap();
}

/// `None` when the server is not given and may be left out.
fn server(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok();
    if url.is_none() {
        assert!(
            std::env::var("DBLOCK_TEST_REQUIRE_SERVERS").as_deref() != Ok("1"),
            "DBLOCK_TEST_REQUIRE_SERVERS=1, but {variable} is not set"
        );
        // Not `eprintln!`, which the test runner keeps to itself.
        let _ = writeln!(
            std::io::stderr(),
            "LEFT OUT: the processes test, because {variable} is not set"
        );
    }
    url
}

fn fresh_name() -> String {
    format!("dblock_processes_{}", uuid::Uuid::now_v7().simple())
}

fn with_database(server: &str, name: &str) -> String {
    let (authority, _) = server.rsplit_once('/').unwrap();
    format!("{authority}/{name}")
}

/// The whole test on one store.
async fn torture(store: &str, url: &str) {
    let _turn = TURN.lock().await;
    let seconds = std::env::var("DBLOCK_PROCESS_SECONDS").map_or(6, |text| text.parse().unwrap());
    let length = Duration::from_secs(seconds);
    let logs = tempfile::tempdir().unwrap();
    let account = Account::connect(url).await.unwrap();
    account.create().await.unwrap();
    let locks = account.lock_manager().await.unwrap();

    let start = Instant::now();
    let mut crew = Crew::start(url, logs.path());
    // The last killed lease must have ended when everyone leaves, for then no row may be held.
    let last_kill = start + length.saturating_sub(TTL * 2);
    let mut next_kill = start + KILL_EVERY / 4;
    while next_kill < last_kill {
        tokio::time::sleep_until(next_kill.into()).await;
        crew.kill_the_holder(&locks, last_kill).await;
        next_kill = Instant::now() + KILL_EVERY;
    }
    tokio::time::sleep_until((start + length).into()).await;
    crew.dismiss().await;

    let held = locks.inspect(InspectFilter::new()).await.unwrap();
    assert!(held.is_empty(), "held after everyone left: {held:#?}");
    let history = History::read(&crew.former);
    history.print(store, length);
    history.check(length);
    let (balance, committed, updates) = account.totals().await.unwrap();
    eprintln!(
        "  {updates} updates committed, {} lost to the balance",
        committed - balance
    );
    assert_eq!(balance, committed, "updates were lost");
    locks.shutdown(Duration::from_secs(1)).await;
}

/// The running processes, and those that have ended.
struct Crew<'a> {
    url: &'a str,
    logs: &'a Path,
    members: Vec<Member>,
    former: Vec<Former>,
}

struct Member {
    /// 0 to 7. A killed member's successor has the same.
    seat: usize,
    process: Child,
    /// Closing it asks the process to end.
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Member {
    /// Its last body has begun and not ended. Only a stopped process stays that way.
    fn is_inside(&self) -> bool {
        let log = Log::read(&self.log).unwrap();
        let mut visits = log
            .iter()
            .rev()
            .filter(|event| !matches!(event, Event::Trouble(_)));
        matches!(visits.next(), Some(Event::Enter { .. }))
    }
}

struct Former {
    seat: usize,
    log: PathBuf,
    /// When it was surely dead, if it was killed.
    killed_ns: Option<i64>,
}

impl<'a> Crew<'a> {
    fn start(url: &'a str, logs: &'a Path) -> Self {
        let mut crew = Self {
            url,
            logs,
            members: Vec::new(),
            former: Vec::new(),
        };
        for seat in 0..PROCESSES {
            crew.hire(seat);
        }
        crew
    }

    fn hire(&mut self, seat: usize) {
        let log = self.logs.join(format!("{}-{seat}", self.former.len()));
        let mut process = Command::new(env!("CARGO_BIN_EXE_dblock-test-worker"))
            .arg(self.url)
            .arg(&log)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.members.push(Member {
            seat,
            stdin: process.stdin.take(),
            process,
            log,
        });
    }

    /// Kills a process that is inside of the lock, and starts another in its place. The one that the row
    /// names is stopped first and killed only if its log says that it is inside: the lock changes hands all
    /// the time.
    async fn kill_the_holder(&mut self, locks: &LockManager, until: Instant) {
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(1..10))).await;
            let Some(pid) = holder(locks).await else { continue };
            let is_holder = |member: &Member| member.process.id() == Some(pid);
            // The row may still name a process that was killed before.
            let Some(at) = self.members.iter().position(is_holder) else {
                continue;
            };
            let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            kill_process(process, Signal::STOP).unwrap();
            if !self.members[at].is_inside() {
                kill_process(process, Signal::CONT).unwrap();
                continue;
            }
            let mut member = self.members.swap_remove(at);
            member.process.kill().await.unwrap();
            self.former.push(Former {
                seat: member.seat,
                log: member.log,
                killed_ns: Some(monotonic_ns()),
            });
            return self.hire(member.seat);
        }
    }

    /// Asks everyone to end, and waits for that.
    async fn dismiss(&mut self) {
        for member in &mut self.members {
            member.stdin = None;
        }
        for mut member in self.members.drain(..) {
            let status = timeout(FAREWELL, member.process.wait()).await;
            let status = status.unwrap_or_else(|_| panic!("a process is still there after {FAREWELL:?}"));
            assert!(status.unwrap().success(), "a process failed; its error is above");
            self.former.push(Former {
                seat: member.seat,
                log: member.log,
                killed_ns: None,
            });
        }
    }
}

/// The process that the row names as the holder of a running lease.
async fn holder(locks: &LockManager) -> Option<u32> {
    let rows = locks.inspect(InspectFilter::new()).await.unwrap();
    let holder = &rows.first()?.holder;
    let (_host, process) = holder.split(' ').next()?.rsplit_once('/')?;
    Some(process.parse().unwrap())
}

/// A stay inside of the lock.
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
struct History {
    /// In the order of their entries.
    stays: Vec<Stay>,
    kills: usize,
    trouble: Vec<String>,
}

impl History {
    fn read(former: &[Former]) -> Self {
        let mut history = Self {
            stays: Vec::new(),
            kills: former.iter().filter(|former| former.killed_ns.is_some()).count(),
            trouble: Vec::new(),
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
                Event::Trouble(text) => self.trouble.push(text),
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

    fn check(&self, length: Duration) {
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
        assert!(cut > 0, "no process was killed inside of the lock");
        assert_eq!(
            self.takeovers().count(),
            cut,
            "a dead process' lock was not taken over"
        );
        // A short run is too short to tell.
        for seat in (0..PROCESSES).filter(|_| length >= FULL_LENGTH) {
            assert!(
                self.stays.iter().any(|stay| stay.seat == seat),
                "process {seat} never got in"
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

    fn print(&self, store: &str, length: Duration) {
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
        eprintln!("  calls that failed and were repeated: {}", self.trouble.len());
        for text in self.trouble.iter().take(5) {
            eprintln!("    {text}");
        }
    }
}
