//! What the crates of dblock share, without I/O: no runtime, no clock, no SQL.
//!
//! An application uses it through `dblock`, which names all of it.

pub mod duration;
#[cfg(feature = "contract")]
pub mod key;
pub mod limits;
pub mod printable;
#[cfg(feature = "contract")]
pub mod store;
pub mod suggest;

#[cfg(feature = "contract")]
pub use key::{InvalidKey, Key};
#[cfg(feature = "contract")]
pub use store::{Finding, InspectFilter, LockRow, RowPosition, Severity};
