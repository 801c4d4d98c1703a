//! A model of the protocol by which dblock keeps a lock in a row, checked in all its states by
//! [stateright]. It shows that the rules suffice, and that each of them is needed.
//!
//! Six models, each small enough to be walked through from end to end:
//!
//! | model | what it is about |
//! |---|---|
//! | [`retry`] | acquires of unknown outcome and their release |
//! | [`lease`] | renewal, expiry and takeover; clocks, pauses, crashes |
//! | [`counts`] | re-entry |
//! | [`hand_over`] | handing the lock over inside a process, fence checks, purge |
//! | [`reservations`] | handing the lock over between processes |
//! | [`turns`] | whether a second process gets its turn |
//!
//! Nothing in the first five is forced to happen: that a process does not take its next step while the clock goes on
//! is a pause of it, or of its thread, or of the network. Their time is counted in ticks up to a bound.
//!
//! The checker's `eventually` does not look at cycles, so "everything held is released in the end" is
//! checked as two properties that each state must have: a row that is held is held for somebody who is
//! inside or still has to release it, or else ends by itself; and no lease is longer than a ttl from now.

pub mod check;
pub mod counts;
pub mod guards;
pub mod hand_over;
pub mod history;
pub mod lease;
pub mod reservations;
pub mod retry;
pub mod store;
pub mod turns;
pub mod wire;
