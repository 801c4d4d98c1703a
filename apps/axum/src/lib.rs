#![doc = include_str!("../README.md")]

mod answer;
mod key;
mod layer;
mod once;
mod problem;
mod request;
mod run;
mod scope;

pub use self::key::record_key;
pub use self::layer::{IdempotencyLayer, IdempotencyService};
pub use self::problem::LockProblem;
pub use self::run::IdempotentRun;
pub use self::scope::Scope;
