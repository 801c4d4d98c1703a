//! Behaviour of databases that memory does not have: snapshots, rights, hostile names and settings, and
//! poolers.

mod fence_snapshot;
mod hostile;
mod hostile_globals;
mod least_rights;
mod messages;
mod pgbouncer;
