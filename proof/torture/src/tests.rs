//! Tests of the checker: what it finds in histories written by hand, and in runs on stores that are broken on
//! purpose.

mod bounds;
mod broken;
mod clocks;
mod ensembles;
mod flaw;
mod histories;
mod identity;
mod once;
mod records;
mod sketch;
mod store;
mod transactions;
mod waits;
