//! The controlling terminal. The command's group is in its background until it asks for it: so a pipeline of
//! which this process is a part keeps its terminal, and a program that reads the terminal or changes its mode
//! has it too.

use std::cell::Cell;
use std::fs::File;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal of this process.
#[derive(Debug)]
pub(super) struct Terminal {
    file: File,
    /// The command has, or had, the foreground.
    given: Cell<bool>,
}

impl Terminal {
    /// `None` where there is none, as under cron.
    pub(super) fn open() -> Option<Self> {
        let file = File::options().read(true).write(true).open("/dev/tty");
        let given = Cell::new(false);
        file.ok().map(|file| Self { file, given })
    }

    /// Whether this process is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file) == Ok(getpgrp())
    }

    /// Whether `group` is in the foreground.
    pub(super) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.file) == Ok(group)
    }

    /// Puts `group` into the foreground.
    pub(super) fn give_to(&self, group: Pid) {
        self.given.set(true);
        self.set(group);
    }

    /// Puts this process's group into the foreground again. Returns whether it was given away.
    pub(super) fn take_back(&self) -> bool {
        let given = self.given.replace(false);
        if given {
            self.set(getpgrp());
        }
        given
    }

    /// The system stops a background process that does this, unless it blocks the signal.
    fn set(&self, group: Pid) {
        let mut stop = SigSet::empty();
        stop.add(Signal::SIGTTOU);
        let blocked = stop.thread_block();
        // A terminal that was closed has no foreground.
        let _ = tcsetpgrp(&self.file, group);
        if blocked.is_ok() {
            let _ = stop.thread_unblock();
        }
    }
}
