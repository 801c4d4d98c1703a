//! This program again, as another process: the watchdog, and the launcher of the command.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// This program under the name `name`, by which it knows what it is, in a process group of its own.
pub(super) fn helper(name: &str) -> io::Result<Command> {
    // Even when its file was replaced by a newer one meanwhile.
    let program = if cfg!(target_os = "linux") {
        "/proc/self/exe".into()
    } else {
        std::env::current_exe()?
    };
    let mut command = Command::new(program);
    command.arg0(name).process_group(0);
    Ok(command)
}
