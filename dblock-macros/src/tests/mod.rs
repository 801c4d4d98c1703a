//! Tests of the whole attribute. What the compiler makes of the result is tested in `tests/ui`.

mod expansion;
mod limits;
mod random;
