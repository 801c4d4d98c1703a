//! What the documents say is true.

mod docs;
mod readme;
