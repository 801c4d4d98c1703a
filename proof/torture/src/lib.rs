//! The torture run: several OS processes of many tasks compete for few keys while processes are killed and
//! stopped, connections break, and the server crashes. Each writes a history. From the histories alone a
//! checker finds whether the locks kept their promises.
//!
//! - `schedule` decides from a seed which fault comes when; `inject` carries it out.
//! - `worker` is what the processes do; `processes` starts, kills and ends them.
//! - `resource` checks fence tokens; `bank` and `counter` are where an update could be lost, `once` where work could be done
//!   twice.
//! - `history` is what is written; `check` judges it; `report` prints the verdict.
//!
//! `cargo xtask torture` builds and starts it. `failover` is another run, of several servers, for
//! `cargo xtask failover`.

mod bank;
mod check;
mod cli;
mod clocks;
mod counter;
mod failover;
mod fault;
mod history;
mod inject;
mod once;
mod payment;
mod process_id;
mod processes;
mod report;
mod resource;
mod run;
mod schedule;
mod settings;
mod soak;
mod target;
mod timeline;
mod upgrade;
mod worker;

pub use cli::main;

#[cfg(test)]
mod tests;
