//! Starts the command when the watchdog knows its group: a process that leads the group, waits for a word, and
//! then becomes the command. So there is no instant in which the command runs and its group is unknown.
//!
//! Two pipes lead to the launcher. It reads the word from one; on the other it says that it is about to
//! become the command, and which error it got instead. The command inherits neither.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use nix::unistd::{Pid, close};
use rustix::io::{FdFlags, fcntl_setfd};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use super::helper::helper;

/// The name by which the launcher is called, and by which it knows what it is.
pub(crate) const NAME: &str = "dblock-launcher";

/// The launcher, which waits for the word. Without it, the launcher ends.
#[derive(Debug)]
pub(super) struct Launcher {
    child: Child,
    word: PipeWriter,
    answer: PipeReader,
}

/// How a launch went.
#[derive(Debug)]
pub(super) enum Launched {
    /// The launcher has become the command.
    Started,
    /// A signal has ended the launcher before that.
    Ended,
    /// The command cannot be executed.
    Failed(io::Error),
}

impl Launcher {
    /// `prepare` sets the environment of the command.
    pub(super) fn start(
        program: &OsStr,
        arguments: &[impl AsRef<OsStr>],
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let (word_read, word) = pipe()?;
        let (answer, answer_write) = pipe()?;
        for inherited in [
            fcntl_setfd(&word_read, FdFlags::empty()),
            fcntl_setfd(&answer_write, FdFlags::empty()),
        ] {
            inherited?;
        }
        let mut command = helper(NAME)?;
        for descriptor in [word_read.as_raw_fd(), answer_write.as_raw_fd()] {
            command.arg(descriptor.to_string());
        }
        prepare(command.arg(program).args(arguments));
        Ok(Self {
            child: command.spawn()?,
            word,
            answer,
        })
    }

    /// The launcher, and then the command: the leader of the group.
    pub(super) fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Lets the command start.
    pub(super) async fn launch(mut self) -> io::Result<Launched> {
        // A launcher that was killed does not read.
        let _ = self.word.write_all(b"!");
        let mut answer = String::new();
        let mut told = Receiver::from_owned_fd(self.answer.into())?;
        told.read_to_string(&mut answer).await?;
        Ok(match answer.strip_prefix('!') {
            None => Launched::Ended,
            Some("") => Launched::Started,
            Some(code) => Launched::Failed(code.parse().map_or_else(
                |_| io::Error::other(code.to_owned()),
                io::Error::from_raw_os_error,
            )),
        })
    }
}

/// The launcher's own process: the numbers of its pipes, the program, and the program's arguments.
pub(crate) fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let mut number = || arguments.next()?.to_str()?.parse::<RawFd>().ok();
    let (Some(word), Some(answer)) = (number(), number()) else {
        return;
    };
    let Some(program) = arguments.next() else {
        return;
    };
    // Opened anew, they are closed when the command begins.
    let (Ok(mut word), Ok(mut answer)) = (
        reopened(word, File::options().read(true)),
        reopened(answer, File::options().write(true)),
    ) else {
        return;
    };
    let mut go = [0];
    // The end of the pipe is that of the process that would watch over the command.
    if word.read_exact(&mut go).is_err() || answer.write_all(b"!").is_err() {
        return;
    }
    let error = Command::new(program).args(arguments).exec();
    let code = error.raw_os_error();
    let _ = answer.write_all(
        code.map_or_else(|| error.to_string(), |code| code.to_string())
            .as_bytes(),
    );
}

/// Opens an inherited descriptor by its number, and closes the inherited one.
fn reopened(descriptor: RawFd, options: &std::fs::OpenOptions) -> io::Result<File> {
    let folder = if cfg!(target_os = "linux") {
        "/proc/self/fd"
    } else {
        "/dev/fd"
    };
    let file = options.open(format!("{folder}/{descriptor}"))?;
    close(descriptor)?;
    Ok(file)
}
