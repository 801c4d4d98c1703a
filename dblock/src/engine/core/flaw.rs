//! Flaws that the simulation puts into the core on purpose, to show that it would find them. Without the
//! feature `simulation` each is `false` at compile time.

macro_rules! flaws {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// A rule that the core can leave out, so that the simulation has to find its absence.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Flaw {
            $($(#[$doc])* $name),+
        }

        impl Flaw {
            /// All flaws.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

flaws! {
    /// A wake-up is believed whatever its token.
    OldWakeUpsAreBelieved,
    /// A caller enters although almost nothing is left of the lease that was passed on.
    TooLittleIsEnough,
    /// The end of a lease is counted from when the answer arrived.
    DeadlineFromTheAnswer,
    /// A lost lease may be handed over.
    HandOverAfterLoss,
    /// A lease whose release was sent may be handed over.
    HandOverWhileReleasing,
    /// A local hand-over keeps the token.
    HandOverKeepsToken,
    /// A lease is handed over more often than tokens were kept free.
    HandOverBeyondSpareTokens,
    /// No ask queues.
    NobodyQueues,
    /// A wake-up changes nothing.
    WakeUpsAreIgnored,
    /// A place is kept although no caller waits for it.
    PlacesAreKept,
    /// A caller whose timeout has passed gets no reply.
    TimeoutsAreForgotten,
    /// An acquire of unknown outcome is asked again with the same lease.
    UnknownOutcomeIsRepeated,
    /// An answer is used twice.
    AnswersCountTwice,
    /// The local deadline is the end in the store, without the margin.
    NoMargin,
    /// The end of a lease that was passed on is counted from the wake-up.
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
    /// The end of one hold ends all holds of the owner.
    HoldsAreForgotten,
    /// A lease with which a caller has entered is asked for again.
    EnteredPlaceIsKept,
    /// A lease whose ask has an unknown outcome is asked for again.
    UnknownPlaceIsKept,
    /// A withdrawn lease is asked for again.
    WithdrawnPlaceIsKept,
    /// A lease that was answered `Lost` is asked for again.
    LostPlaceIsKept,
    /// An answer that found the row locked extends the place.
    SkippedCounts,
    /// A `Busy` that was read from a snapshot extends the place.
    BusyCounts,
    /// A process that receives wake-ups does not poll.
    ListenersDoNotPoll,
    /// No lease is renewed.
    NothingIsRenewed,
    /// The row is free when the body ends, whatever `hold_min` says.
    HoldMinIsForgotten,
    /// A body may stay for longer than `max_hold`.
    MaxHoldIsForgotten,
    /// A process hands the lock over locally for ever.
    TurnsNeverEnd,
    /// A revoked lease is handed over.
    RevokedIsHandedOver,
    /// A caller that is gone gets a reply.
    GoneCallersAreKept,
    /// A release of unknown outcome is not repeated.
    UnknownReleaseIsDone,
    /// A request is sent while another one is on its way.
    RequestsOvertake,
    /// A run that began by a write of its own is not taken back.
    SlowBeginsStand,
    /// A run begins by a write that needs no live lease.
    BeginsNeedNoLease,
    /// What is read after the lease has ended counts.
    LateReadsCount,
    /// An outcome ends the lock although there is another hold.
    OutcomesIgnoreOtherHolds,
    /// A transaction keeps a lock that has another hold.
    TransactionsIgnoreOtherHolds,
    /// The store flushes no release, not even one that passes the row on.
    PassOnIsNotFlushed,
}

#[cfg(feature = "simulation")]
mod switch {
    use std::cell::Cell;

    use super::Flaw;

    thread_local! {
        static FLAW: Cell<Option<Flaw>> = const { Cell::new(None) };
    }

    /// Puts a flaw into the core, for this thread; `None` removes it.
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
