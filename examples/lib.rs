//! The parts of the examples that tests drive.

pub mod web;
