//! Tests of the whole attribute. How the compiler treats the result is tested in `tests/ui`.

mod expansion;
mod messages;
mod random;
