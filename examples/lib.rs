//! The parts of the examples that tests drive.

pub mod custom_store;
pub mod jobs;
pub mod optimistic;
pub mod stop;
pub mod tickets;
pub mod web;
