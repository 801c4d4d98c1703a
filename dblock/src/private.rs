//! What the code that the attribute generates may call: the macro's whole contract. Not for people.

use std::future::Future;

use crate::{LockError, LockOptions};
