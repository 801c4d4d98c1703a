//! The flaws that a store can have.

/// How a store can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// No flaw.
    None,
    /// No flaw, and waiters are told of releases.
    NoneTelling,
    /// Every third acquire of a held key is granted.
    GrantsWhileHeld,
    /// Every acquire of an account's key is granted.
    LosesMoney,
    /// A release frees the key whichever lease holds it. Some acquires fail, and their leases, which were never
    /// granted, are released.
    ReleasesAnyLease,
    /// Tokens are seconds.
    CoarseTokens,
    /// Tokens count down.
    FallingTokens,
    /// A lease ends too early, and a renewal revives it.
    RevivesExpired,
    /// A release is confirmed and carried out only seconds later.
    ReleasesLate,
    /// Every twentieth release is confirmed, and makes the lease last.
    KeepsReleased,
    /// Every third grant is forgotten, as by a failover that loses commits.
    LosesCommits,
    /// Every waiter is told that it is the successor, and a row that is passed on is passed on twice.
    PassesOnTwice,
    /// A row is passed on to a lease whose process has gone.
    PassesOnToTheDead,
    /// The first process never becomes the successor, and finds every key busy for as long as it waits.
    ForgetsWaiters,
    /// The store stops answering.
    Hangs,
}

impl Flaw {
    /// The store tells waiters of releases and passes rows on.
    pub(super) fn tells(self) -> bool {
        matches!(
            self,
            Self::NoneTelling | Self::PassesOnTwice | Self::PassesOnToTheDead | Self::ForgetsWaiters
        )
    }
}
