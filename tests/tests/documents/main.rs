//! The documents are true.

mod docs;
mod first_example;
mod runbooks;
mod unit_tests;
