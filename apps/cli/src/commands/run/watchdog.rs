//! Kills the command's group when this process is killed: a second process that waits for the end of a pipe.
//!
//! Linux could send the command a signal when its parent dies, but to the command alone and not to its group.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::helper::helper;

/// The name by which the second process is called, and by which it knows what it is.
pub(crate) const NAME: &str = "dblock-watchdog";

/// The running watchdog. It ends with this.
#[derive(Debug)]
pub(super) struct Watchdog(Child);

impl Watchdog {
    pub(super) fn start() -> io::Result<Self> {
        // No signal to our group may end it, and it keeps none of our files open.
        let child = helper(NAME)?
            .current_dir("/")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }

    #[cfg(target_os = "linux")]
    pub(super) fn id(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }

    /// From now on, the end of this process is the end of `group`.
    pub(super) fn watch(&mut self, group: Pid) -> io::Result<()> {
        let pipe = self.0.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(pipe, "{group}")
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // It must not see the end of the pipe.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The watchdog's own process. Its stdin says which group, and ends with the process that it watches.
pub(crate) fn main() {
    // It was executed by a path that ends with `exe`, which `top` and `pgrep` would show.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(c"dblock-watchdog");
    let mut pipe = io::stdin().lock();
    let mut group = String::new();
    let _ = pipe.read_line(&mut group);
    // It never got a group: there is no command.
    let Ok(group) = group.trim().parse() else {
        return;
    };
    let _ = pipe.read_to_end(&mut Vec::new());
    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
}
