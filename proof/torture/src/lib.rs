//! The torture run: several OS processes of many tasks fight over few keys while processes are killed and
//! stopped, connections break, and the server crashes. Everyone writes down what happened; a checker then
//! finds from that history alone whether the locks kept their promises.
//!
//! - `schedule` decides from a seed which fault comes when; `inject` carries it out.
//! - `worker` is what the processes do; `crew` starts, kills and dismisses them.
//! - `resource` checks fence tokens; `bank` is where an update could be lost, `once` where work could be done
//!   twice.
//! - `history` is what everyone writes down; `check` judges it; `report` tells people.
//!
//! `cargo xtask torture` builds and starts it. `failover` is another run, of several servers, for
//! `cargo xtask failover`.

mod bank;
mod check;
mod cli;
mod crew;
mod failover;
mod fault;
mod history;
mod inject;
mod once;
mod payment;
mod report;
mod resource;
mod run;
mod schedule;
mod seat;
mod settings;
mod target;
mod timeline;
mod worker;

pub use cli::main;

#[cfg(test)]
mod tests;
