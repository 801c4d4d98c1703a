//! A model of the protocol by which dblock keeps a lock in a row, checked in all its states by
//! [stateright]. It shows that the rules suffice, and that each of them is needed.
//!
//! The checker's `eventually` does not look at cycles, so "everything held is released in the end" is
//! checked as two properties that each state must have: a row that is held is held for somebody who is
//! inside or still has to release it, or else ends by itself; and no lease is longer than a ttl from now.

pub mod check;
#[macro_use]
pub mod guards;
pub mod protocol;
pub mod records;
pub mod store;
