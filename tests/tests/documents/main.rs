//! The documents are true.

mod docs;
mod first_example;
mod readme;
mod runbooks;
