//! One run from its start to its verdict.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use dblock::{Finding, InspectFilter, LockManager, LockRow, Severity};
use fastrand::Rng;
use futures_util::StreamExt as _;
use futures_util::future::try_join;
use futures_util::stream::FuturesUnordered;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};

use crate::bank::Bank;
use crate::check;
use crate::clocks::{Apart, ServerClock};
use crate::history::{Event, History, Journal, RESOURCE, RUNNER, Row, now};
use crate::inject::Injector;
use crate::processes::{Processes, Setup};
use crate::report::{self, Progress};
use crate::resource::Resource;
use crate::schedule::{self, Planned, Stage};
use crate::target::{self, Durability, StoreKind, Target};
use crate::upgrade::Upgrade;
use crate::worker::{LONGEST_TTL, finish_runs, key_names};

/// The part of a run without faults, in which everything must recover.
const CALM: Duration = Duration::from_secs(22);

/// The part after that, in which only commits are slow.
const SLOW_COMMITS: Duration = Duration::from_secs(14);

/// The server's log, beside the history.
const SERVER_LOG: &str = "server.log";

/// How long the runner waits for a connection: without one there is no verdict.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long a lease may outlive the last process: its ttl, after a statement that arrived late.
pub(crate) const QUIET: Duration = LONGEST_TTL.saturating_add(Duration::from_secs(3));

/// The settings of a run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The store of the locks.
    #[arg(long, value_enum)]
    store: StoreKind,
    /// How long faults are injected.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Decides which faults come when, and what the processes do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Processes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=50))]
    processes: u32,
    /// Tasks of each process.
    #[arg(long, default_value_t = 6)]
    tasks: u64,
    /// Every hand-over goes through the database.
    #[arg(long)]
    no_hand_over: bool,
    /// The server's files, or those of SQLite, are on a disk that fails. Needs root.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "durable",
        conflicts_with_all = ["lies", "clocks", "from"])]
    disk: Option<Durability>,
    /// Nothing but the network fails, which also delivers statements twice. For PostgreSQL, MySQL and Redis.
    #[arg(long)]
    lies: bool,
    /// The clocks of the processes and the server's run at different rates, and the server's jumps. For the same stores.
    #[arg(long, value_enum, conflicts_with = "lies")]
    clocks: Option<Apart>,
    /// An upgrade from the programs `dblock` and `dblock-torture` of an earlier version, in this folder. At first all
    /// processes are of that version; after a third of the time the table is migrated, and then every second one.
    #[arg(long, conflicts_with = "lies")]
    from: Option<PathBuf>,
    /// Keep the history here even when all is well.
    #[arg(long)]
    keep: Option<PathBuf>,
}

impl Arguments {
    fn length(&self) -> anyhow::Result<Duration> {
        Duration::try_from_secs_f64(self.minutes * 60.0).context("--minutes")
    }

    /// The command that repeats this run.
    fn command(&self) -> String {
        let (store, seed) = (self.store.name(), self.seed);
        let (minutes, processes, tasks) = (self.minutes, self.processes, self.tasks);
        let hand_over = if self.no_hand_over { " --no-hand-over" } else { "" };
        let disk = match self.disk {
            None => "",
            Some(Durability::Durable) => " --disk",
            Some(Durability::Forgetful) => " --disk=forgetful",
        };
        let lies = if self.lies { " --lies" } else { "" };
        let apart = self.clocks;
        let apart = apart.map_or_else(String::new, |apart| format!(" --clocks {}", apart.name()));
        let from = self.from.as_ref();
        let from = from.map_or_else(String::new, |folder| format!(" --from {}", folder.display()));
        format!(
            "cargo xtask torture --store {store} --minutes {minutes} --seed {seed}{disk} \
             -- --processes {processes} --tasks {tasks}{hand_over}{lies}{apart}{from}"
        )
    }
}

pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    until_signal(run(arguments))
}

/// Runs on this thread, so that the processes, which are tied to it, live as long as the run.
pub(crate) fn until_signal(run: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (mut hangup, mut interrupt, mut terminate) = (
            signal(SignalKind::hangup())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        );
        // Dropping the run drops the guards of every process and folder that it made.
        tokio::select! {
            ended = run => ended,
            _ = hangup.recv() => Ok(ExitCode::from(129)),
            _ = interrupt.recv() => Ok(ExitCode::from(130)),
            _ = terminate.recv() => Ok(ExitCode::from(143)),
        }
    })
}

async fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let length = arguments.length()?;
    anyhow::ensure!(
        arguments.store.has_one_server() || !arguments.lies && arguments.clocks.is_none(),
        "--lies and --clocks need a store with one server"
    );
    anyhow::ensure!(
        arguments.disk.is_none() || arguments.store.has_one_disk(),
        "--disk is for postgres, mysql, redis and sqlite"
    );
    anyhow::ensure!(
        arguments.disk != Some(Durability::Forgetful) || arguments.store != StoreKind::Sqlite,
        "--disk=forgetful is for servers: dblock itself sets how SQLite writes"
    );
    let folder = tempfile::Builder::new().prefix("dblock-torture-").tempdir()?;
    eprintln!("{}", arguments.command());
    Box::pin(record(arguments, length, folder.path())).await?;

    let history = History::read(folder.path())?;
    let verdict = check::check(&history);
    report::print(&verdict);
    let (store, seed) = (arguments.store.name(), arguments.seed);
    println!(
        "\nfor docs/evidence.md:\n{}",
        report::row(&verdict, store, arguments.minutes, seed)
    );
    let kept = match &arguments.keep {
        Some(keep) => Some(keep_in(folder.path(), keep)?),
        None if verdict.findings.is_empty() => None,
        None => Some(folder.keep()),
    };
    if let Some(kept) = kept {
        report::pictures(&history, &verdict, &kept)?;
        eprintln!("the history is in {}", kept.display());
    }
    if !verdict.findings.is_empty() {
        eprintln!("to repeat it: {}", arguments.command());
    }
    Ok(report::exit_code(&verdict))
}

fn keep_in(folder: &Path, keep: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(keep)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_history = entry.path().extension().is_some_and(|end| end == "jsonl");
        if is_history || entry.file_name() == SERVER_LOG {
            std::fs::copy(entry.path(), keep.join(entry.file_name()))?;
        }
    }
    Ok(keep.to_owned())
}

/// Runs all of it, and writes the histories.
async fn record(arguments: &Arguments, length: Duration, folder: &Path) -> anyhow::Result<()> {
    let slots = usize::try_from(arguments.processes)?;
    // The host's clock is SQLite's.
    let faketime = dblock_servers::faketime().filter(|_| arguments.store != StoreKind::Sqlite);
    if faketime.is_none() && arguments.store != StoreKind::Sqlite {
        eprintln!("LEFT OUT: jumps of the clients' clocks, because libfaketime is not installed");
    }
    let clock = arguments.clocks.map(|apart| {
        let faketime = faketime.as_deref().context("--clocks needs libfaketime")?;
        ServerClock::new(faketime, apart.rate(&mut Rng::with_seed(arguments.seed)))
    });
    let target = Target::start(arguments.store, arguments.disk, slots, folder, clock.transpose()?).await?;
    let (locks, bank) = open(&target)?;
    let upgrade = Upgrade::make_table(arguments.from.as_deref(), &locks, target.url()).await?;
    if let Some(bank) = &bank {
        bank.open().await?;
    }
    let opened_again = target.disk.is_some();
    if opened_again {
        close(&locks, bank.as_ref()).await;
    }
    let journal = Journal::create(&folder.join(RUNNER))?;
    let resource = Resource::listen(Journal::create(&folder.join(RESOURCE))?).await?;
    let stage = Stage {
        store: arguments.store,
        slots,
        keys: key_names().len(),
        clocks: faketime.is_some(),
        lies: arguments.lies,
        apart: arguments.clocks,
        disk: arguments.disk.is_some(),
    };
    let whole = length + CALM + SLOW_COMMITS;
    let end = now() + i64::try_from(whole.as_nanos())?;
    journal.write(Event::Begin {
        store: arguments.store.name().to_owned(),
        seed: arguments.seed,
        end,
        woken_leader_revokes: woken_leader_revokes(arguments.store, &locks).await?,
    });
    if let Some(clock) = &target.clock {
        journal.write(Event::Clock {
            process: None,
            rate: clock.rate,
        });
    }
    let processes = Processes::start(
        Setup {
            target: &target,
            folder,
            resource: resource.address()?,
            tasks: arguments.tasks,
            seed: arguments.seed,
            hand_over: !arguments.no_hand_over,
            upgrade: upgrade.as_ref(),
            faketime: faketime.as_deref(),
            apart: arguments.clocks,
            journal: &journal,
        },
        slots,
    )?;
    let injector = Injector {
        processes: &processes,
        target: &target,
        locks: &locks,
        journal: &journal,
    };
    let progress = Progress::new(folder, whole);
    let plan = schedule::plan(arguments.seed, &stage, length);
    let parts = async {
        let migrates = async {
            match &upgrade {
                Some(upgrade) => upgrade.migrate(&locks, length / 3).await,
                None => Ok(()),
            }
        };
        try_join(inject_all(&injector, plan, &progress), migrates).await?;
        journal.write(Event::Calm);
        sleep(CALM).await;
        journal.write(Event::SlowCommits);
        let plan = schedule::slow_commits(arguments.seed, arguments.store, SLOW_COMMITS);
        inject_all(&injector, plan, &progress).await?;
        processes.end().await?;
        // A lease ends by the server's clock.
        let rate = target.clock.as_ref().map_or(1_000, |clock| clock.rate);
        sleep(QUIET * 1_000 / rate).await;
        let (locks, bank) = if opened_again {
            open(&target)?
        } else {
            (locks.clone(), bank.clone())
        };
        record_end(&locks, bank.as_ref(), &journal).await
    };
    tokio::select! {
        ended = parts => ended?,
        () = resource.serve() => unreachable!("it serves until it is dropped"),
        () = progress.print() => unreachable!("it prints until it is dropped"),
    }
    locks.shutdown(Duration::from_secs(1)).await;
    target.copy_log(&folder.join(SERVER_LOG)).await;
    Ok(())
}

fn open(target: &Target) -> anyhow::Result<(LockManager, Option<Bank>)> {
    let (source, bank) = target::source(target.url(), TIMEOUT)?;
    let locks = LockManager::builder(source).namespace("torture");
    Ok((locks.build_lazy()?, bank))
}

/// Nobody but the processes may have a file open whose disk is mounted again. So there are no orders of an operator.
async fn close(locks: &LockManager, bank: Option<&Bank>) {
    locks.shutdown(Duration::from_secs(1)).await;
    if let Some(bank) = bank {
        bank.leave().await;
    }
}

/// Whether the store is an etcd of such an old version, by its diagnosis.
async fn woken_leader_revokes(store: StoreKind, locks: &LockManager) -> anyhow::Result<bool> {
    let version = |finding: &Finding| finding.check == "version" && finding.severity == Severity::Note;
    Ok(store == StoreKind::Etcd && locks.admin().diagnose().await?.iter().any(version))
}

/// Carries out the plan. Faults overlap; returns when the last has ended.
async fn inject_all(injector: &Injector<'_>, plan: Vec<Planned>, progress: &Progress) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut running = FuturesUnordered::new();
    let mut plan = plan.iter().peekable();
    loop {
        let next = plan.peek().map(|planned| start + planned.at);
        tokio::select! {
            () = sleep_until(next.unwrap_or(start)), if next.is_some() => {
                if let Some(planned) = plan.next() {
                    running.push(injector.inject(&planned.fault));
                }
            }
            Some(injected) = running.next() => progress.note_fault(injected?),
            else => return Ok(()),
        }
    }
}

/// Writes what is left when every process has ended.
async fn record_end(locks: &LockManager, bank: Option<&Bank>, journal: &Journal) -> anyhow::Result<()> {
    let held = locks.admin().list(InspectFilter::new()).await?;
    journal.write(Event::Quiet {
        held: held_rows(held),
    });
    if let Some(bank) = bank {
        let (accounts, transfers) = bank.close().await?;
        journal.write(Event::Bank { accounts, transfers });
        journal.write(Event::Counted {
            counts: bank.counts().await?,
        });
        journal.write(Event::OnceEnds {
            ends: finish_runs(locks, bank, journal).await?,
        });
    }
    Ok(())
}

pub(crate) fn held_rows(rows: Vec<LockRow>) -> Vec<Row> {
    let row = |row: LockRow| Row {
        key: row.key.to_string(),
        token: row.fence_token,
        remaining_ms: u64::try_from(row.expire_at.since(row.now).as_millis()).unwrap_or(u64::MAX),
        holder: row.holder,
    };
    rows.into_iter().map(row).collect()
}
