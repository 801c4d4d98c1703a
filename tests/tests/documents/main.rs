//! What the documents say is true.

mod docs;
mod first_example;
mod readme;
