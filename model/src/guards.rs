//! The guards of the protocol: rules that each close a sequence of events. A test removes one of them and
//! expects the checker to find that sequence.

/// Makes the enum, and the list of all that is in it.
macro_rules! guards {
    ($($(#[$doc:meta])* $guard:ident,)*) => {
        /// One rule of the protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Guard {
            $($(#[$doc])* $guard,)*
        }

        impl Guard {
            /// Each rule.
            pub fn every() -> impl Iterator<Item = Self> {
                [$(Self::$guard),*].into_iter()
            }
        }
    };
}

guards! {
    /// A release is conditioned on `lease_id`. Without it: on the process.
    ReleaseChecksLease,
    /// A renewal is conditioned on `lease_id`. Without it: on nothing.
    ExtendChecksLease,
    /// A renewal requires `expire_at > now`.
    ExtendChecksExpiry,
    /// A free row refuses the `lease_id` that it carries.
    FreeRowRefusesItsLease,
    /// A repeated acquire is answered with the grant that stands. Without it: as busy.
    RepeatedAcquireIsSameGrant,
    /// The number of holds is written, not added to.
    AbsoluteCounts,
    /// A new token is larger than the row's `fence_ceiling`. Without it: than the clock allows only.
    TokenAboveCeiling,
    /// A new token is not smaller than the store's clock. Without it: the ceiling alone counts.
    TokenFromClock,
    /// The acquire raises `fence_ceiling` by the block that the process may hand out.
    CeilingCoversBlock,
    /// An extend never lowers the row's token.
    ExtendKeepsLaterToken,
    /// Only rows whose `fence_ceiling` is below the clock are purged.
    PurgeBelowClock,
    /// Only rows that were idle for longer than any request is late are purged.
    PurgeOnlyIdle,
    /// A body ends at the local deadline.
    LocalDeadline,
    /// The local deadline is counted from before the request was sent. Without it: from the reply.
    DeadlineFromSend,
    /// The local deadline is earlier than the store's by a margin.
    Margin,
    /// An acquire of unknown outcome is released.
    OrphanIsReleased,
    /// That release is resent until the ttl has passed.
    OrphanReleaseIsResent,
    /// The last one is sent after the ttl. Without it: answered after the ttl, and perhaps carried out before.
    LastReleaseAfterTtl,
    /// The lock is handed over only before the local deadline.
    HandOverWithinLease,
    /// The lock is handed over only within the block of reserved tokens.
    HandOverWithinBlock,
    /// Not after a body that called `verify_in`.
    NoHandOverAfterCheck,
    /// A process hands the lock over for a short time only, then releases it.
    StreakIsBounded,
    /// Then it stands back for longer than the pause between two looks of another process. Without it: for less.
    StandsBackForAPause,
    /// The row follows before a fence check.
    FlushBeforeCheck,
    /// A fence check locks the row until the user's transaction ends.
    CheckLocksRow,
    /// While a reservation stands nobody else is granted the lock.
    ReservationKeepsOthersOut,
    /// While a reservation stands nobody else gets one.
    OneReservation,
    /// A grant ends the reservation.
    GrantEndsReservation,
    /// A reservation raises `fence_ceiling` above its token.
    ReservationRaisesCeiling,
    /// An extend takes the lock over only for the lease that it is reserved for.
    ClaimNeedsReservation,
    /// And it never shortens what was promised. Without it: to a ttl.
    ClaimKeepsThePromise,
    /// "Left" is believed only when it names the lease that the reservation is behind.
    LeftNamesTheLease,
    /// And only while the reservation stands by the process' own clock.
    LeftWhileReserved,
    /// And only while the process has no request on its way.
    LeftWithNoAskOnItsWay,
    /// Who has said that a lease is left lets nobody in with it.
    LeavesForGood,
    /// An ask of unknown outcome ends the use of its lease.
    UnknownAskEndsLease,
    /// "Withdrawn" does not settle an ask of unknown outcome: it may be carried out yet.
    WithdrawnIsNotTheEnd,
    /// A lease that was withdrawn is not used again, whatever the answer.
    WithdrawalEndsLease,
    /// A lease with which an owner came in is not asked for again.
    EntryEndsAsking,
    /// Who came in by a reservation releases only when the row is known to have followed.
    ReleaseAfterClaim,
}

/// Which guards stand: all of them, or all but one.
#[derive(Debug, Clone, Copy)]
pub struct Guards {
    removed: Option<Guard>,
}

impl Guards {
    /// The protocol as it is.
    pub const ALL: Self = Self { removed: None };

    /// The protocol without one of its rules.
    pub const fn without(guard: Guard) -> Self {
        Self { removed: Some(guard) }
    }

    /// Whether `guard` stands.
    pub fn has(self, guard: Guard) -> bool {
        self.removed != Some(guard)
    }
}
