//! Checks the simulation itself: it must find each flaw that is put into the core on purpose.

use super::{Flaw, put_in, run};

/// The result of looking for a flaw.
#[derive(Debug, Clone)]
pub struct Found {
    /// The flaw.
    pub flaw: Flaw,
    /// How many schedules were run, including the one that shows the flaw; `None` when none of them did.
    pub schedules: Option<u64>,
    /// The rule that was broken.
    pub violation: String,
}

/// Puts `flaw` into the core, and runs schedules from the seed `first` on until one shows it, at most `most`
/// of them.
pub fn find(flaw: Flaw, first: u64, most: u64) -> Found {
    put_in(Some(flaw));
    let found = (first..first + most).find_map(|seed| Some((seed, run(seed).err()?)));
    put_in(None);
    let (seed, violation) = found.unzip();
    Found {
        flaw,
        schedules: seed.map(|seed| seed - first + 1),
        violation: violation.unwrap_or_default(),
    }
}
