//! `dblock doctor`

use std::time::{Duration, Instant};

use clap::builder::styling::{AnsiColor, Style};
use dblock::{Finding, LockManager, Severity};
use serde_json::{Value, json};

use crate::cli::StoreArguments;
use crate::connect::{Missing, explained, lazy_manager};
use crate::duration::fine;
use crate::failure::{Code, Failure};
use crate::output;
use crate::progress::during;
use crate::remedy::{of_this_program, with_options};

/// The key of the lock that is tried. Its row stays, and is purged like any other.
const KEY: &str = "dblock-doctor";

/// How often it is tried.
const TRIES: usize = 5;

/// Another doctor may have it.
const WAIT: Duration = Duration::from_secs(5);

/// Above this people notice.
const SLOW: Duration = Duration::from_millis(250);

pub(crate) async fn doctor(store: &StoreArguments) -> Result<Code, Failure> {
    let locks = lazy_manager(store, Missing::IsAnError)?;
    let findings = during("examining the database", async {
        let mut findings = locks.admin().diagnose().await?;
        // Without tables or rights the reason has been told.
        if findings.iter().all(can_lock) {
            findings.push(tried(&locks).await);
        }
        Ok::<_, Failure>(findings)
    });
    let findings = findings.await.map_err(|failure| explained(store, failure))?;
    let faults = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Fault)
        .count();
    if store.json {
        let findings: Vec<_> = findings.iter().map(|finding| value(finding, store)).collect();
        output::json(&json!({"findings": findings, "faults": faults}))?;
    } else {
        for finding in &findings {
            print(finding, store)?;
        }
    }
    Ok(if faults == 0 { Code::Done } else { Code::No })
}

fn can_lock(finding: &Finding) -> bool {
    let about = ["schema", "grants", "read_only"].contains(&finding.check);
    !(about && finding.severity == Severity::Fault)
}

/// Takes and releases a lock some times.
async fn tried(locks: &LockManager) -> Finding {
    let mut times = Vec::new();
    for _ in 0..TRIES {
        match try_once(locks).await {
            Ok(time) => times.push(time),
            Err(failure) => {
                return Finding::fault(
                    "lock",
                    failure.message(),
                    "a lock could not be taken and released",
                    "do what the message says, then run `dblock doctor` again",
                );
            }
        }
    }
    times.sort_unstable();
    let (acquire, release) = times[TRIES / 2];
    let found = format!(
        "taken in {}, released in {}, the median of {TRIES}",
        fine(acquire),
        fine(release)
    );
    let meaning = "this is what a lock costs without waiting: a round trip and a commit each";
    if acquire + release > SLOW {
        let remedy = "look for slow disks and synchronous replication over a distance; choose a ttl of many times this";
        return Finding::note("lock", found, meaning, remedy);
    }
    Finding::fine("lock", found, meaning)
}

async fn try_once(locks: &LockManager) -> Result<(Duration, Duration), Failure> {
    let since = Instant::now();
    let guard = locks.lock(KEY).wait(WAIT).acquire().await?;
    let (acquire, held) = (since.elapsed(), Instant::now());
    guard.release().await?;
    Ok((acquire, held.elapsed()))
}

fn word(severity: Severity) -> (&'static str, AnsiColor) {
    match severity {
        Severity::Fine => ("fine", AnsiColor::Green),
        Severity::Fault => ("fault", AnsiColor::Red),
        _ => ("note", AnsiColor::Yellow),
    }
}

fn value(finding: &Finding, store: &StoreArguments) -> Value {
    let told = |text: &str| with_options(&of_this_program(text), store);
    json!({
        "check": finding.check,
        "severity": word(finding.severity).0,
        "found": told(&finding.found),
        "meaning": finding.meaning,
        "remedy": finding.remedy.as_deref().map(told),
    })
}

fn print(finding: &Finding, store: &StoreArguments) -> Result<(), Failure> {
    let told = |text: &str| with_options(&of_this_program(text), store);
    let (word, colour) = word(finding.severity);
    let style = Style::new().fg_color(Some(colour.into())).bold();
    output::line(&format!("{style}{word:5}{style:#} {}", finding.check))?;
    output::indented(&output::printable(&told(&finding.found)))?;
    if let Some(remedy) = &finding.remedy {
        output::indented(&format!("Meaning: {}.", finding.meaning))?;
        output::indented(&format!("Remedy: {}.", told(remedy)))?;
    }
    Ok(())
}
