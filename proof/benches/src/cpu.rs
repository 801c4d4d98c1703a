//! CPU time of processes, from /proc.

use std::fs;

use anyhow::Context as _;

/// The unit of CPU time on Linux, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// The fields of `/proc/<pid>/stat` that count here.
struct Stat {
    name: String,
    parent: u32,
    /// Ticks of the process, and of its children that have ended.
    ticks: u64,
}

fn stat(pid: &str) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything.
    let (start, rest) = text.rsplit_once(')')?;
    let name = start.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some(Stat {
        name,
        parent: u32::try_from(number(1)?).ok()?,
        ticks: number(11)? + number(12)? + number(13)? + number(14)?,
    })
}

/// CPU seconds of this process so far.
pub(crate) fn of_this_process() -> anyhow::Result<f64> {
    let stat = stat("self").context("cannot read /proc/self/stat")?;
    Ok(stat.ticks as f64 / TICKS_PER_SECOND)
}

/// CPU seconds so far of the server whose process `backend` serves a connection, with all that it
/// started. `None` when it is not on this machine.
pub(crate) fn of_server(backend: u32, name: &str) -> Option<f64> {
    let main = stat(&backend.to_string())
        .filter(|stat| stat.name == name)?
        .parent;
    let own = stat(&main.to_string()).filter(|stat| stat.name == name)?.ticks;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let running: u64 = processes
        .filter_map(|entry| stat(entry.file_name().to_str()?))
        .filter(|stat| stat.parent == main)
        .map(|stat| stat.ticks)
        .sum();
    Some((own + running) as f64 / TICKS_PER_SECOND)
}
