//! What the crates of dblock share, without I/O: no runtime, no clock, no SQL.
//!
//! An application uses it through `dblock`, which names all of it. The modules that the documentation does not show are
//! for the other crates of dblock alone, and change without notice.

#![cfg_attr(docsrs, feature(doc_cfg))]
// It is on for everybody who reads this.
#![cfg_attr(docsrs, doc(auto_cfg(hide(feature = "contract"))))]

#[cfg(feature = "serde")]
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod duration;
#[cfg(feature = "contract")]
mod error;
#[cfg(feature = "contract")]
mod key;
#[doc(hidden)]
pub mod limits;
#[cfg(feature = "contract")]
#[doc(hidden)]
pub mod machine;
#[cfg(feature = "contract")]
mod options;
#[doc(hidden)]
pub mod printable;
#[cfg(feature = "contract")]
#[doc(hidden)]
pub mod runs;
#[cfg(feature = "contract")]
pub mod store;
#[doc(hidden)]
pub mod suggest;
#[cfg(feature = "contract")]
#[doc(hidden)]
pub mod sync;
#[cfg(feature = "contract")]
mod waiting;

#[cfg(feature = "contract")]
#[doc(hidden)]
pub use error::rounded;
#[cfg(feature = "contract")]
pub use error::{LockError, LostReason, RunError, TimeoutCause};
#[cfg(feature = "contract")]
#[doc(hidden)]
pub use key::check_namespace;
#[cfg(feature = "contract")]
pub use key::{InvalidKey, Key};
#[cfg(feature = "contract")]
pub use options::{LockOptions, OnLost};
#[cfg(feature = "contract")]
#[doc(hidden)]
pub use options::{Wait, margin};
#[cfg(feature = "contract")]
pub use runs::OnCrash;
#[cfg(feature = "contract")]
pub use store::filter::{InspectFilter, RowPosition};
#[cfg(feature = "contract")]
pub use store::finding::{Finding, Severity};
#[cfg(feature = "contract")]
pub use store::row::{LockRow, OpenTransaction};
#[cfg(feature = "contract")]
pub use waiting::Waiting;
#[cfg(feature = "contract")]
#[doc(hidden)]
pub use waiting::{OnWait, TellsWait};
