//! What the crates of dblock share, without I/O. Use it through `dblock`: other uses have no promise.

pub mod duration;
pub mod limits;
pub mod printable;
pub mod suggest;
