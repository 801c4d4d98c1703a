//! The worker as an OS process. The runner starts it and sends commands to its standard input; the process
//! ends when that closes or when the runner ends.

use std::io::BufRead as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock::LockManager;
use dblock::store::Store;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Worker;
use super::keys::KEYS;
use super::section::Planned;
use super::trouble::Troubled;
use crate::history::{Event, now};
use crate::once::Step;
use crate::process_id::ProcessId;
use crate::resource::ResourceClient;
use crate::target;

/// How often the watch wakes, and how late it must be for a stall.
const WATCH: Duration = Duration::from_millis(20);
const STALL: Duration = Duration::from_millis(150);

/// How long a process waits for a connection of its own.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How a worker is started.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    pub(crate) url: String,
    #[arg(long)]
    pub(crate) folder: PathBuf,
    #[arg(long)]
    pub(crate) resource: SocketAddr,
    #[arg(long)]
    pub(crate) slot: usize,
    #[arg(long)]
    pub(crate) generation: usize,
    #[arg(long)]
    pub(crate) tasks: u64,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long, action = clap::ArgAction::Set)]
    pub(crate) hand_over: bool,
}

pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    end_with_the_runner()?;
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload().is::<Planned>() {
            report(panic);
            // Here, because the library catches panics.
            std::process::exit(101);
        }
    }));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(work(arguments))?;
    Ok(ExitCode::SUCCESS)
}

/// A stopped process does not notice that its standard input has closed; Linux ends it.
fn end_with_the_runner() -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}

async fn work(arguments: &Arguments) -> anyhow::Result<()> {
    let process = ProcessId {
        slot: arguments.slot,
        generation: arguments.generation,
    };
    let (mut source, bank) = target::source(&arguments.url, TIMEOUT)?;
    let seed = arguments.seed.wrapping_mul(1_000_003) ^ (process.generation * 100 + process.slot) as u64;
    let mut troubled = None;
    if let Some(bank) = &bank {
        let around = Troubled::around(bank.store()?, seed);
        source = (Arc::clone(&around) as Arc<dyn Store>).into();
        troubled = Some(around);
    }
    // The server may be down at this moment.
    let locks = LockManager::builder(source)
        .namespace("torture")
        .hand_over(arguments.hand_over)
        .build_lazy()?;
    let resource = ResourceClient::new(arguments.resource);
    let worker = Worker::new(
        process,
        locks.clone(),
        &arguments.folder,
        resource,
        bank.clone(),
        KEYS,
    )?;

    if let Some(troubled) = troubled {
        let _ = troubled.worker.set(Arc::clone(&worker));
    }
    watch_for_stalls(Arc::clone(&worker));
    let stop = CancellationToken::new();
    let mut commands = commands();
    let obey = async {
        while let Some(command) = commands.recv().await {
            match command {
                Command::Exhaust(length) => {
                    if let Some(bank) = bank.clone() {
                        tokio::spawn(async move { bank.exhaust(length).await });
                    }
                }
                Command::StallInTransaction => worker.stalls_in_transaction.store(true, Ordering::Relaxed),
                Command::StallAt(last) => {
                    *worker.last_step.lock().expect("nobody panics with it") = Some(last);
                }
            }
        }
        stop.cancel();
    };
    let work = Arc::clone(&worker);
    tokio::join!(obey, work.work(seed, arguments.tasks, stop.clone()));
    locks.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

/// A command of the runner.
enum Command {
    /// Take every connection of the application's pool for so long.
    Exhaust(Duration),
    /// Stop for ever in the next transaction with which a lock ends, to be killed there.
    StallInTransaction,
    /// Stop for ever at this step of the next run, to be killed there.
    StallAt(Step),
}

/// The commands, until standard input closes.
fn commands() -> mpsc::UnboundedReceiver<Command> {
    let (send, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(ms) = line.strip_prefix("exhaust ").and_then(|ms| ms.parse().ok()) {
                let _ = send.send(Command::Exhaust(Duration::from_millis(ms)));
            }
            if line == "stall in a transaction" {
                let _ = send.send(Command::StallInTransaction);
            } else if let Some(step) = line.strip_prefix("stall ") {
                let step = Step::ALL.into_iter().find(|known| known.name() == step);
                let _ = send.send(Command::StallAt(step.expect("the runner knows the steps")));
            }
        }
    });
    commands
}

/// Writes when the machine let nothing of this process run: an excuse for what was late.
pub(crate) fn watch_for_stalls(worker: Arc<Worker>) {
    std::thread::spawn(move || {
        loop {
            let before = now();
            std::thread::sleep(WATCH);
            let late = Duration::from_nanos((now() - before).unsigned_abs());
            if late > STALL {
                let ms = u32::try_from(late.as_millis()).unwrap_or(u32::MAX);
                worker.journal.write(Event::Stall { ms });
            }
        }
    });
}
