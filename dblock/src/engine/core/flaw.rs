//! Flaws that the simulation puts into the core on purpose, to show that it would find them. Without the feature
//! `simulation` each is `false` at compile time.

macro_rules! flaws {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// A rule that the core leaves out.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Flaw {
            $($(#[$doc])* $name),+
        }

        impl Flaw {
            /// Every flaw there is.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

flaws! {
    /// A wake-up is believed whatever its token.
    OldWakeUpsAreBelieved,
    /// A caller enters with next to nothing left of a lease that was passed on.
    TooLittleIsEnough,
    /// The end of a lease is counted from when the answer came.
    DeadlineFromTheAnswer,
    /// A lease that was lost may be handed over.
    HandOverAfterLoss,
    /// A lease whose release was sent may be handed over.
    HandOverWhileReleasing,
    /// The next owner has the same token.
    HandOverKeepsToken,
    /// A lease is handed over more often than tokens were kept free.
    HandOverBeyondSpareTokens,
    /// No ask asks for a place in the queue.
    NobodyQueues,
    /// Wake-ups change nothing.
    WakeUpsAreIgnored,
    /// Places that nobody waits for are kept.
    PlacesAreKept,
    /// Callers whose time is over are not told.
    TimeoutsAreForgotten,
    /// An acquire of unknown outcome is asked again with the same lease.
    UnknownOutcomeIsRepeated,
}

#[cfg(feature = "simulation")]
mod switch {
    use std::cell::Cell;

    use super::Flaw;

    thread_local! {
        static FLAW: Cell<Option<Flaw>> = const { Cell::new(None) };
    }

    /// Puts a flaw into the core, for this thread.
    pub fn put_in(flaw: Option<Flaw>) {
        FLAW.set(flaw);
    }

    pub(crate) fn flawed(flaw: Flaw) -> bool {
        FLAW.get() == Some(flaw)
    }
}

#[cfg(not(feature = "simulation"))]
mod switch {
    pub(crate) const fn flawed(_: super::Flaw) -> bool {
        false
    }
}

pub(crate) use switch::flawed;
#[cfg(feature = "simulation")]
pub use switch::put_in;
