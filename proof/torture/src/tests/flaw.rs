//! The flaws that a store can have.

/// How a store can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It is not.
    None,
    /// It is not, and waiters hear of releases.
    NoneTelling,
    /// Every third acquire of a held key is granted.
    GrantsWhileHeld,
    /// So is every acquire of an account's key.
    LosesMoney,
    /// A release frees the key whichever lease holds it. Some acquires fail, whose leases are then released
    /// although they were never granted.
    ReleasesAnyLease,
    /// Tokens are seconds.
    CoarseTokens,
    /// Tokens count down.
    FallingTokens,
    /// A lease ends sooner than was said, and a renewal brings it back to life.
    RevivesExpired,
    /// A release is confirmed and carried out only seconds later.
    ReleasesLate,
    /// Every twentieth release is confirmed, and makes the lease last.
    KeepsReleased,
    /// Every third grant is forgotten, as by a failover that loses commits.
    LosesCommits,
    /// Everyone who waits is told that he is next, and a row that is passed on is passed on to a second one
    /// too.
    PassesOnTwice,
    /// A row is passed on to a lease whose process has gone.
    PassesOnToTheDead,
    /// The first process is never next, never told, and finds every key busy for as long as it waits.
    ForgetsWaiters,
    /// It stops answering.
    Hangs,
}

impl Flaw {
    /// The flaw is in how waiters are told and rows are passed on.
    pub(super) fn tells(self) -> bool {
        matches!(
            self,
            Self::NoneTelling | Self::PassesOnTwice | Self::PassesOnToTheDead | Self::ForgetsWaiters
        )
    }
}
