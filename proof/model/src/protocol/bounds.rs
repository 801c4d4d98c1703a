//! How much happens in a run. All of it together would be too many states.

use crate::store::Time;

/// How much happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// For the reader.
    pub name: &'static str,
    /// Length of a lease.
    pub ttl: Time,
    /// Time ends here. It begins with 1.
    pub last_tick: Time,
    /// How many leases each process asks for.
    pub leases: &'static [u8],
    /// Acquires that find the lock busy become its successor.
    pub queue: bool,
    /// How many more tokens an acquire asks for.
    pub spare: u8,
    /// How many requests that nobody waits for are kept at a time; further ones are lost.
    pub late: usize,
    /// Only P has fault: the requests of the others are carried out and answered at once.
    pub calm: bool,
    /// So are all acquires and releases.
    pub prompt: bool,
    /// The store's clock jumps ahead by so much, once. The documented condition is: not by more than the
    /// margin. Where it doesn't, there is no margin.
    pub jump: Time,
    /// The other events.
    pub events: &'static [Event],
}

/// The events that may happen besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A process gives up an ask: it is carried out later, or never.
    UnknownAsk,
    /// A process gives up an extend or a release.
    UnknownWrite,
    /// The network makes a copy of an acquire, once.
    Copy,
    /// A process dies, once, and another takes its place.
    Crash,
    /// The operator forces the lock free, once.
    ForceRelease,
    /// Rows are purged.
    Purge,
    /// Leases are renewed.
    Renew,
    /// Bodies re-enter.
    Nest,
    /// The lock is handed over inside a process.
    HandOver,
    /// Bodies check their token in a transaction.
    Check,
    /// Callers stop waiting.
    Withdraw,
    /// A transaction of the store's lasts, and its row stays locked.
    SlowCommit,
}

/// A run in which nothing happens but asking and releasing.
const QUIET: Bounds = Bounds {
    name: "",
    ttl: 3,
    last_tick: 4,
    leases: &[2, 1],
    queue: false,
    spare: 0,
    late: 0,
    calm: false,
    prompt: false,
    jump: 0,
    events: &[],
};

/// Acquires of unknown outcome.
pub const RETRY: Bounds = Bounds {
    name: "retry",
    ttl: 2,
    late: 2,
    calm: true,
    events: &[Event::UnknownAsk, Event::Copy],
    ..QUIET
};

/// Renewal, expiry and takeover, with clocks that differ.
pub const CLOCK: Bounds = Bounds {
    name: "clock",
    last_tick: 5,
    late: 1,
    calm: true,
    jump: 1,
    events: &[Event::Renew, Event::UnknownWrite],
    ..QUIET
};

/// The same with a crash.
pub const CRASH: Bounds = Bounds {
    name: "crash",
    jump: 0,
    events: &[Event::Renew, Event::UnknownWrite, Event::Crash],
    ..CLOCK
};

/// The same with an operator.
pub const FORCE: Bounds = Bounds {
    name: "force",
    events: &[Event::Renew, Event::UnknownWrite, Event::ForceRelease],
    ..CRASH
};

/// Re-entry. Time stands still: a row that stays held is held for ever.
pub const COUNTS: Bounds = Bounds {
    name: "counts",
    prompt: true,
    ttl: 2,
    last_tick: 1,
    late: 2,
    calm: true,
    events: &[Event::Nest, Event::UnknownWrite],
    ..QUIET
};

/// Local hand-over, fence checks and purge.
pub const HAND_OVER: Bounds = Bounds {
    name: "hand-over",
    prompt: true,
    ttl: 2,
    spare: 1,
    late: 1,
    calm: true,
    events: &[
        Event::Renew,
        Event::UnknownWrite,
        Event::HandOver,
        Event::Check,
        Event::Crash,
        Event::ForceRelease,
        Event::Purge,
    ],
    ..QUIET
};

/// The pass-on, with clocks that differ.
pub const PASS_ON_CLOCK: Bounds = Bounds {
    name: "pass-on, clock",
    queue: true,
    jump: 1,
    events: &[],
    ..QUIET
};

/// The pass-on with crashes, and callers who go away.
pub const PASS_ON_CRASH: Bounds = Bounds {
    name: "pass-on, crash",
    jump: 0,
    events: &[Event::Crash, Event::ForceRelease, Event::Withdraw],
    ..PASS_ON_CLOCK
};

/// The pass-on with late requests.
pub const PASS_ON_LATE: Bounds = Bounds {
    name: "pass-on, late",
    ttl: 2,
    last_tick: 3,
    calm: true,
    jump: 0,
    late: 1,
    events: &[Event::UnknownAsk, Event::UnknownWrite, Event::Withdraw],
    ..PASS_ON_CLOCK
};

/// The pass-on with local hand-over and renewals.
pub const PASS_ON_TOKENS: Bounds = Bounds {
    name: "pass-on, tokens",
    jump: 0,
    last_tick: 3,
    spare: 1,
    events: &[Event::Renew, Event::HandOver],
    ..PASS_ON_CLOCK
};

/// The pass-on with transactions of the store that last.
pub const PASS_ON_SLOW: Bounds = Bounds {
    name: "pass-on, slow",
    jump: 0,
    events: &[Event::SlowCommit],
    ..PASS_ON_CLOCK
};

/// The pass-on among three.
pub const PASS_ON_THREE: Bounds = Bounds {
    name: "pass-on, three",
    ttl: 2,
    leases: &[1, 1, 1],
    jump: 0,
    ..PASS_ON_CLOCK
};
