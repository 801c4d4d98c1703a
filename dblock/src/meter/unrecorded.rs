//! Without the feature `metrics`: nothing is recorded, and nothing is kept.

use std::time::Duration;

use super::AcquireOutcome;
use crate::LostReason;
use crate::store::{Outcome, StoreError};

#[derive(Debug)]
pub(crate) struct Meter;

#[derive(Debug)]
pub(crate) struct Site;

#[derive(Debug)]
pub(crate) struct Waiting;

impl Meter {
    pub(crate) fn new(_: &'static str) -> Self {
        Self
    }

    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn site(&self, _: Option<&'static str>) -> &Site {
        &Site
    }
}

macro_rules! nothing {
    ($($of:ident :: $name:ident ( $($argument:ty),* ) )*) => {
        $(impl $of {
            #[allow(clippy::unused_self, reason = "as with the feature")]
            #[inline]
            pub(crate) fn $name(&self, $(_: $argument),*) {}
        })*
    };
}

nothing! {
    Meter::renewal_lag(Duration)
    Meter::batch(usize, Duration)
    Meter::answers(&[Result<Outcome, StoreError>])
    Meter::store_events()
    Site::acquire_ended(AcquireOutcome, Duration)
    Site::granted(Duration)
    Site::waited(Duration)
    Site::left(Duration)
    Site::lost(LostReason, Duration)
    Site::handed_over()
    Site::passed_on()
    Site::taken_over()
}

impl Site {
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn waits(&self) -> Waiting {
        Waiting
    }

    #[cfg(feature = "run_once")]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    #[inline]
    pub(crate) fn run_ended(&self, _: &'static str) {}
}
