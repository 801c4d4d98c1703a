//! The guards of the protocol: rules that each close a sequence of events. A test removes one of them and
//! expects the checker to find that sequence.

/// Makes the enum, and the list of all that is in it.
macro_rules! guards {
    ($($(#[$doc:meta])* $guard:ident,)*) => {
        /// One rule of the model.
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
    // The row. `Store` takes these away from dblock's own rules.
    /// A release is conditioned on `lease_id`. Without it: on the process.
    ReleaseChecksLease,
    /// A release requires `expire_at > now`.
    ReleaseChecksExpiry,
    /// A renewal is conditioned on `lease_id`. Without it: on nothing.
    ExtendChecksLease,
    /// A renewal requires `expire_at > now`.
    ExtendChecksExpiry,
    /// An extend never lowers the row's token.
    ExtendKeepsLaterToken,
    /// The number of holds is written, not added to.
    AbsoluteCounts,
    /// A free row refuses the `lease_id` that it carries.
    FreeRowRefusesItsLease,
    /// A repeated acquire is answered with the grant that stands. Without it: as busy.
    RepeatedAcquireIsSameGrant,
    /// A new token is larger than the row's `fence_ceiling`. Without it: than the clock allows only.
    TokenAboveCeiling,
    /// A new token is not smaller than the store's clock. Without it: the ceiling alone counts.
    TokenFromClock,
    /// A grant raises `fence_ceiling` by the spare tokens that the process may hand out.
    CeilingCoversSpareTokens,
    /// A release passes the row on to a live successor only.
    PassOnToLiveOnly,
    /// A grant and a pass-on clear the successor.
    GrantClearsSuccessor,
    /// Only rows whose `fence_ceiling` is below the clock are purged.
    PurgeBelowClock,
    /// Only rows that were idle for longer than any request is late are purged.
    PurgeOnlyIdle,
    /// A fence check locks the row until the user's transaction ends.
    CheckLocksRow,

    // A lease in a process.
    /// A body ends at the local deadline.
    LocalDeadline,
    /// The local deadline is counted from before the request was sent. Without it: from the answer.
    DeadlineFromSend,
    /// The local deadline is earlier than the store's by a margin.
    Margin,
    /// The lock is handed over only before the local deadline.
    HandOverWithinLease,
    /// The lock is handed over only within the spare tokens.
    HandOverWithinSpareTokens,
    /// Not after a body that called `verify_in`.
    NoHandOverAfterCheck,
    /// The row follows before a fence check.
    FlushBeforeCheck,

    // Acquires of unknown outcome.
    /// They are released.
    AbandonedIsReleased,
    /// That release is resent until the ttl has passed.
    AbandonedReleaseIsResent,
    /// The last one is sent after the ttl. Without it: answered after the ttl, and perhaps carried out
    /// before.
    LastReleaseAfterTtl,
    /// `Withdrawn` does not end that if the lease was the successor before: that is what the release may have
    /// found.
    WithdrawnMayBeAnEarlierAsk,
    /// Nor does `Released`: the row may have been passed on to that earlier place.
    ReleasedMayBeAnEarlierAsk,

    // The rules of entering on a wake-up.
    /// Its token is larger than the holder's token in the latest `Queued`.
    WakeUpIsNewer,
    /// No ask of the lease is on its way.
    WakeUpWithNoAskOnItsWay,
    /// The local deadline is ahead. Without it: the passed-on lease is counted from the wake-up.
    WakeUpWithinLease,
    /// That deadline counts `next_ttl`. Without it: the whole ttl.
    DeadlineOfNextTtl,
    /// `Queued` is answered from a locked row only. Without it: also from one that was read while another
    /// transaction changed it.
    SnapshotIsNotQueued,
    /// A wake-up for a lease that nobody waits with is answered by its release.
    UnwantedPassOnIsReleased,

    // A lease that is not asked with again: one
    /// that has entered,
    EntryEndsAsking,
    /// that was withdrawn,
    WithdrawalEndsAsking,
    /// that was told `Lost`,
    LostEndsAsking,
    /// whose ask had an unknown outcome.
    UnknownEndsAsking,
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
