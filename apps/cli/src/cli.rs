//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use std::time::Duration;

use clap::builder::UnknownArgumentValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::duration::{self, Wait};

/// Runs a command under a distributed lock that is kept in a database, and shows and mends locks
#[derive(Debug, Parser)]
#[command(name = "dblock", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0    done; from `run`, the command's own code, or 128 + the signal that ended it
  1    no: there is no such row, the lock is not held, `doctor` found a fault
  64   a mistake in the arguments, or a URL that cannot be used
  69   the store cannot be reached
  70   a mistake of the program
  71   the system refuses, such as a port that is in use
  74   the answer cannot be written
  75   busy: another process holds the lock
  76   the lease was lost or revoked, and the command was stopped or had ended
  77   the database refuses: password, grants
  78   the database has no tables, or none that fit
  79   in doubt: an earlier attempt of `run --once` was interrupted, and nothing was run
  126  the command cannot be executed
  127  there is no such command";

/// The library's.
pub(crate) const DEFAULT_TABLE: &str = "distributed_lock";

/// Which store, and how to answer.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArguments {
    /// The database: postgres://…, mysql://…, mariadb://…, sqlite://…, redis://… or valkey://…, and if this program
    /// was built with them zookeeper://… or etcd://…; or in the variable `DATABASE_URL`
    ///
    /// Other users of this host can see arguments: give a URL with a password in the variable.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The lock table: `table` or `schema.table`. In Redis there is none: there `?prefix=NAME` in the URL
    /// chooses the locks
    #[arg(long, global = true, default_value = DEFAULT_TABLE, value_name = "NAME")]
    pub(crate) table: String,
    /// Puts `NAME:` before every key
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Answers in JSON; errors too, on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command while this process holds a lock
    Run(RunArguments),
    /// Lists locks that are held: first those that somebody waits for, then the longest held
    Ls(ListArguments),
    /// Shows the row of one key
    Show {
        /// The key
        key: String,
    },
    /// Prints what happens to locks, until it is stopped
    Watch(WatchArguments),
    /// Looks for what breaks locks: rights, settings, clock, poolers
    Doctor,
    /// Revokes a lock: it is no longer renewed, and its holder is told to finish
    Revoke {
        /// The key
        key: String,
    },
    /// Frees a lock at once, whoever holds it: two may hold it then
    ForceRelease {
        /// The key
        key: String,
        /// Does not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Deletes the rows that nobody has used for long
    Purge {
        /// For how long nobody must have used them; at least a day
        #[arg(long, default_value = "7d", value_parser = duration::parse_idle)]
        idle: Duration,
        /// Does not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Creates or upgrades the tables
    Migrate,
    /// Shows what is remembered of runs, and decides about them
    #[command(subcommand)]
    Records(RecordsCommand),
    /// Serves a page that shows locks
    Serve(ServeArguments),
    /// Prints the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Prints the man page, or writes those of all subcommands
    Man {
        /// Where to write them
        folder: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Names what only one process may use at a time
    #[arg(long, short, required_unless_present = "once")]
    pub(crate) key: Option<String>,
    /// Runs the command unless it has succeeded before: names the run, which is the key of its lock too
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["key", "hold_min", "shared", "limit"], requires_all = ["remember", "on_crash"])]
    pub(crate) once: Option<String>,
    /// With --once: for how long a success is remembered
    #[arg(long, requires = "once", value_parser = duration::of("remember"), value_name = "DURATION")]
    pub(crate) remember: Option<Duration>,
    /// With --once: what to do after an attempt that was interrupted, of which nobody knows how far it came
    #[arg(long, requires = "once")]
    pub(crate) on_crash: Option<Interrupted>,
    /// Length of the lease; it is renewed while the command runs
    #[arg(long, default_value = "30s", value_parser = duration::of("ttl"))]
    pub(crate) ttl: Duration,
    /// How long to wait for the lock: a duration, or `forever` [default: not at all]
    #[arg(long, value_parser = duration::parse_wait)]
    pub(crate) wait: Option<Wait>,
    /// The name of `--wait` in other programs.
    #[arg(long, hide = true, value_parser = UnknownArgumentValueParser::suggest_arg("--wait"))]
    timeout: Option<String>,
    /// How long the command has to end after TERM, before KILL; at most a third of the ttl and of
    /// `--max-hold` [default: 5s or that third]
    #[arg(long, value_parser = duration::or_zero)]
    pub(crate) grace: Option<Duration>,
    /// Shares the lock: commands that share it run beside each other, and beside no command that does not
    #[arg(long, conflicts_with_all = ["limit", "hold_min"])]
    pub(crate) shared: bool,
    /// Shares the lock, and runs the command while fewer than this many share it, on all hosts together
    #[arg(long, conflicts_with = "hold_min", value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub(crate) limit: Option<u32>,
    /// Keeps the lock busy for at least this long, even when the command ends sooner
    #[arg(long, value_parser = duration::of("hold_min"), value_name = "DURATION")]
    pub(crate) hold_min: Option<Duration>,
    /// Ends the command before it has held the lock for longer than this: TERM comes `--grace` earlier
    #[arg(long, value_parser = duration::of("max_hold"), value_name = "DURATION")]
    pub(crate) max_hold: Option<Duration>,
    /// The exit code when the lock is busy
    #[arg(
        long,
        short = 'E',
        visible_alias = "conflict-exit-code",
        default_value_t = 75,
        value_name = "CODE"
    )]
    pub(crate) busy_code: u8,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Interrupted {
    /// Run it again
    Retry,
    /// Run nothing until somebody decides by `dblock records resolve`
    Stop,
}

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// Only keys that begin with this
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Free and expired rows too
    #[arg(long, short)]
    pub(crate) all: bool,
    /// At most this many rows
    #[arg(long, default_value_t = 1_000, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArguments {
    /// Only keys that begin with this
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// How often to look
    #[arg(long, default_value = "1s", value_parser = duration::parse_interval, value_name = "DURATION")]
    pub(crate) every: Duration,
    /// The most locks that may be held
    #[arg(long, default_value_t = 1_000, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    pub(crate) limit: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecordsCommand {
    /// Lists records, without their results
    List(RecordsArguments),
    /// Shows one record, with its result and error, which may be secret
    Show {
        /// The key
        key: String,
    },
    /// Deletes the record of a run that succeeded or failed: the next call runs it again
    Forget {
        /// The key
        key: String,
        /// Does not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Decides about a run that crashed or failed
    Resolve(ResolveArguments),
}

#[derive(Debug, Args)]
pub(crate) struct RecordsArguments {
    /// Only keys that begin with this
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Only runs in this state
    #[arg(long)]
    pub(crate) state: Option<RunState>,
    /// At most this many records
    #[arg(long, default_value_t = 1_000, value_name = "RECORDS", value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    pub(crate) limit: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RunState {
    /// Begun: it is running, or it has crashed
    Processing,
    /// Begun, and its attempt holds the lock
    Running,
    /// Interrupted, so nobody knows how far it came: in doubt, where `on_crash` is "stop"
    #[value(alias = "in-doubt")]
    Crashed,
    /// Done, and not to be run again
    Succeeded,
    /// Failed: it may run again
    Failed,
}

#[derive(Debug, Args)]
pub(crate) struct ResolveArguments {
    /// The key
    pub(crate) key: String,
    /// It had no effect: the next call runs it, as its first attempt
    #[arg(long, required_unless_present = "succeeded", conflicts_with = "succeeded")]
    pub(crate) run_again: bool,
    /// It had its effect, and this is its result
    #[arg(long, value_name = "JSON")]
    pub(crate) succeeded: Option<String>,
    /// For how long that is remembered
    #[arg(long, default_value = "30d", value_parser = duration::of("remember"), value_name = "DURATION")]
    pub(crate) remember: Duration,
    /// Also for a run that has succeeded: shows its result, and replaces that
    #[arg(long, requires = "succeeded", conflicts_with = "run_again")]
    pub(crate) replace: bool,
    /// Does not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The address, or the name of a host, and the port to listen on
    #[arg(long, default_value = "127.0.0.1:7575", value_name = "ADDRESS:PORT", value_parser = address)]
    pub(crate) listen: String,
    /// The rights of everybody who reaches the page; must be given for an address that other hosts reach
    /// [default: read-only]
    #[arg(long)]
    pub(crate) access: Option<PageAccess>,
}

/// A host and a port. Which address the host has is asked when it is listened on.
fn address(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':');
    if let Some((host, port)) = parts
        && !host.is_empty()
        && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'))
        && port.parse::<u16>().is_ok()
    {
        return Ok(text.to_owned());
    }
    let port = text.trim_start_matches(':').parse().unwrap_or(7575_u16);
    Err(format!("write an address and a port, such as 127.0.0.1:{port}"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PageAccess {
    /// See keys and holders
    ReadOnly,
    /// Revoke and free locks, too
    Manage,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
