//! Faults: answers that are lost or late, stores and servers that fail, and several of these at once.

mod acquire;
mod lease;
mod restart;
mod servers;
mod store;
mod together;
