//! The report: progress during a run, figures at its end, and pictures of the findings.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::check::{Cause, Runs, Verdict};
use crate::failover::range;
use crate::history::History;
use crate::process_id::ProcessId;
use crate::timeline;

/// How often a line of progress is printed.
const EVERY: Duration = Duration::from_secs(2);

/// How many findings are printed and drawn; a broken lock makes thousands.
const SHOWN: usize = 20;

/// A section's entry in a history.
const ENTRY: &[u8] = b"\"e\":\"enter\"";

/// Counts while a run goes on.
#[derive(Debug)]
pub(crate) struct Progress {
    folder: PathBuf,
    start: Instant,
    length: Duration,
    injected: Cell<usize>,
    not_injected: Cell<usize>,
    entries: Cell<usize>,
    /// How many bytes of each history were read.
    read: RefCell<HashMap<PathBuf, u64>>,
}

impl Progress {
    pub(crate) fn new(folder: &Path, length: Duration) -> Self {
        Self {
            folder: folder.to_owned(),
            start: Instant::now(),
            length,
            injected: Cell::default(),
            not_injected: Cell::default(),
            entries: Cell::default(),
            read: RefCell::default(),
        }
    }

    pub(crate) fn note_fault(&self, injected: bool) {
        let count = if injected {
            &self.injected
        } else {
            &self.not_injected
        };
        count.set(count.get() + 1);
    }

    /// Prints a line of progress every two seconds until dropped.
    pub(crate) async fn print(&self) {
        let on_terminal = std::io::stderr().is_terminal();
        loop {
            tokio::time::sleep(EVERY).await;
            let before = self.entries.get();
            self.count_entries();
            let (from, to) = if on_terminal { ("\r\x1b[K", "") } else { ("", "\n") };
            let rate = (self.entries.get() - before) as u64 / EVERY.as_secs();
            let _ = write!(
                std::io::stderr(),
                "{from}{:>5.0} of {} s: {} faults ({} could not be), {} sections, {rate} a second{to}",
                self.start.elapsed().as_secs_f64(),
                self.length.as_secs(),
                self.injected.get(),
                self.not_injected.get(),
                self.entries.get(),
            );
        }
    }

    /// Counts the entries that were added to the histories. An entry that two reads share is not counted; the
    /// figures at the end are exact.
    fn count_entries(&self) {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for file in files {
            if file.file_name().to_str().and_then(ProcessId::of_file).is_none() {
                continue;
            }
            let mut read = self.read.borrow_mut();
            let from = read.entry(file.path()).or_default();
            let mut text = Vec::new();
            let added = File::open(file.path()).and_then(|mut file| {
                file.seek(SeekFrom::Start(*from))?;
                file.read_to_end(&mut text)
            });
            *from += added.unwrap_or(0) as u64;
            let found = text
                .windows(ENTRY.len())
                .filter(|window| *window == ENTRY)
                .count();
            self.entries.set(self.entries.get() + found);
        }
    }
}

/// The figures of a run and its findings.
pub(crate) fn print(verdict: &Verdict) {
    let counts = &verdict.counts;
    println!("\nfaults injected: {}", counts.injected());
    for (name, (injected, not)) in &counts.faults {
        let not = if *not > 0 {
            format!(" ({not} more could not be)")
        } else {
            String::new()
        };
        println!("  {injected:>6}  {name}{not}");
    }
    println!(
        "sections entered: {} by {} processes",
        counts.sections, counts.processes
    );
    for (form, count) in &counts.by_form {
        println!("  {count:>6}  {form}");
    }
    println!(
        "  of them {} re-entries; {} handed over inside a process; {} by tasks that did not inherit; {} with hold_min, \
         {} with max_hold",
        counts.reentries, counts.handed_over, counts.spawned, counts.with_hold_min, counts.with_max_hold
    );
    for (settings, count) in &counts.by_settings {
        println!("  {count:>6}  by a process: {settings}");
    }
    for (how, count) in &counts.by_how {
        println!("  {count:>6}  {how}");
    }
    println!("  {:>6}  cut by a kill", counts.cut);
    println!("calls ended:");
    for (end, count) in &counts.by_end {
        println!("  {count:>6}  {end:?}");
    }
    println!("overlaps of owners, by cause:");
    for cause in Cause::EXCEPTIONS.into_iter().chain([Cause::Unexplained]) {
        let count = verdict.overlaps.get(&cause).unwrap_or(&0);
        println!("  {count:>6}  {}", cause.name());
    }
    let fence = &verdict.fence;
    println!(
        "fenced writes: {} accepted; without the check {} more would have got through",
        fence.accepted,
        fence.all_refused()
    );
    println!(
        "  {:>6}  sent in time, and late on their way",
        fence.refused_on_their_way
    );
    for (cause, count) in &fence.refused {
        println!("  {count:>6}  {}", cause.name());
    }
    let judged = verdict.judged;
    println!(
        "judged by todc-utils: {} operations on {} locks and counters, up to {} at once",
        judged.operations - judged.left_out,
        judged.objects,
        judged.longest
    );
    if judged.left_out > 0 {
        let left_out = judged.left_out;
        println!("LEFT OUT: todc-utils, for {left_out} operations in parts that would take it hours");
    }
    println!("transfers committed: {}", counts.transfers);
    let (taken, other) = counts.counted;
    println!("counted in the database: {taken} by transactions with which a lock ended, {other} by others");
    print_runs(&verdict.once);
    println!(
        "longest wait for a lock {:?}, at most {:?} longer than allowed; for a release {:?}",
        counts.longest_wait, counts.latest, counts.longest_release
    );
    if !verdict.outages.is_empty() {
        println!("nobody was granted a lock for so long:");
    }
    for (fault, lengths) in &verdict.outages {
        println!(
            "  {:>6}  times: {fault}: {}",
            lengths.len(),
            range(lengths.clone())
        );
    }
    for state in &verdict.missing {
        println!("this run has shown nothing of {state}");
    }
    let findings = verdict.findings.len();
    for finding in verdict.findings.iter().take(SHOWN) {
        println!("VIOLATION: {finding}");
    }
    if findings > SHOWN {
        println!("and {} more", findings - SHOWN);
    }
    println!(
        "{}",
        if findings == 0 {
            "no violation".to_owned()
        } else {
            format!("{findings} VIOLATIONS")
        }
    );
}

fn print_runs(once: &Runs) {
    println!("runs of run_once: {} in {} attempts", once.called, once.attempts);
    for (answer, count) in &once.answers {
        println!("  {count:>6}  calls {answer}");
    }
}

/// Draws a timeline of each finding that is about a moment.
pub(crate) fn pictures(history: &History, verdict: &Verdict, folder: &Path) -> anyhow::Result<()> {
    for (number, finding) in verdict.findings.iter().take(SHOWN).enumerate() {
        if let Some(picture) = timeline::draw(history, finding) {
            let path = folder.join(format!("violation-{number}.svg"));
            std::fs::write(&path, picture)?;
            eprintln!("a picture: {}", path.display());
        }
    }
    Ok(())
}

/// A row for the table in docs/evidence.md.
pub(crate) fn row(verdict: &Verdict, store: &str, minutes: f64, seed: u64) -> String {
    let counts = &verdict.counts;
    let overlaps = |cause| verdict.overlaps.get(&cause).copied().unwrap_or(0);
    let ms = |length: Duration| length.as_millis();
    let cells = [
        store.to_owned(),
        minutes.to_string(),
        seed.to_string(),
        counts.injected().to_string(),
        counts.processes.to_string(),
        counts.sections.to_string(),
        counts.transfers.to_string(),
        format!("{} / {}", verdict.fence.accepted, verdict.fence.all_refused()),
        Cause::EXCEPTIONS
            .map(|cause| overlaps(cause).to_string())
            .join(" / "),
        format!("{} / {} ms", ms(counts.longest_wait), ms(counts.longest_release)),
        verdict.findings.len().to_string(),
    ];
    format!("| {} |", cells.join(" | "))
}

pub(crate) fn exit_code(verdict: &Verdict) -> ExitCode {
    if verdict.findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
