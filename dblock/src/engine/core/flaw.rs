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
    /// An answer is taken for two.
    AnswersCountTwice,
    /// A lease ends here when it ends in the store.
    NoMargin,
    /// What is left of a lease that was passed on counts from the wake-up.
    PlacesCountFromTheWakeUp,
    /// A wake-up is believed while an ask is on its way.
    WakeUpsAreBelievedWhileAsking,
    /// A lease may be handed over after a fence check.
    HandOverAfterPin,
    /// A fence check does not wait until the row names the owner.
    PinsAreConfirmedAtOnce,
    /// An acquire of unknown outcome is forgotten.
    AbandonedIsForgotten,
    /// A release that finds nothing proves that the acquire was not carried out.
    AbandonedIsReleasedOnce,
    /// The last release of an abandoned acquire may be sent before the ttl has passed.
    LastReleaseIsSentEarly,
    /// The deadline of a lease that has ended is moved.
    LostLivesAgain,
    /// Whoever leaves takes all its holds along.
    HoldsAreForgotten,
    /// The lease that somebody entered with is asked for again.
    EnteredPlaceIsKept,
    /// A lease whose ask has an unknown outcome is asked for again.
    UnknownPlaceIsKept,
    /// A lease that was withdrawn is asked for again.
    WithdrawnPlaceIsKept,
    /// A lease that was told `Lost` is asked for again.
    LostPlaceIsKept,
    /// An answer that found the row locked gives the place more time.
    SkippedCounts,
    /// Busy read from a snapshot gives the place more time.
    BusyCounts,
    /// Whoever hears wake-ups does not poll.
    ListenersDoNotPoll,
    /// No lease is renewed.
    NothingIsRenewed,
    /// The row is free when the body ends, whatever `hold_min` says.
    HoldMinIsForgotten,
    /// A body stays for longer than `max_hold`.
    MaxHoldIsForgotten,
    /// A process hands the lock over in its own ranks for good.
    TurnsNeverEnd,
    /// A revoked lease is handed over.
    RevokedIsHandedOver,
    /// Callers that went away are answered.
    GoneCallersAreKept,
    /// A release of unknown outcome is not repeated.
    UnknownReleaseIsDone,
    /// Requests go out while another one is on its way.
    RequestsOvertake,
    /// The store flushes no release, not even one that passes the row on with a lease that ends first.
    PassOnIsNotFlushed,
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
