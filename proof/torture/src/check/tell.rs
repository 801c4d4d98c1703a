//! Findings in words.

use std::fmt;

use super::finding::Finding;
use crate::history::MS;

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap {
                key,
                first,
                second,
                length,
            } => {
                let us = length / 1_000;
                write!(f, "two inside {key} for {us} µs: {first} and {second}")
            }
            Self::OwnerShared { first, second } => {
                write!(f, "two chains had one owner: {first} and {second}")
            }
            Self::TokenReused { key, first, second } => {
                write!(f, "a token of {key} was given twice: {first} and {second}")
            }
            Self::TicketAdoptedTwice { key, first, second } => {
                write!(f, "a ticket of {key} was adopted twice: {first} and {second}")
            }
            Self::TokenFell { key, first, second } => {
                write!(f, "a token of {key} fell: {first}, then {second}")
            }
            Self::ReentryChanged { key, outer, inner } => {
                write!(
                    f,
                    "a re-entry of {key} changed owner or token: {outer}, inside {inner}"
                )
            }
            Self::ReentryRefused {
                key, process, call, ..
            } => write!(
                f,
                "process {process} call {call} was refused {key}, which its owner had"
            ),
            Self::StaleWriteAccepted {
                key, token, highest, ..
            } => write!(
                f,
                "a write to {key} with token {token} was accepted after {highest}"
            ),
            Self::HeldAtTheEnd(row) => write!(
                f,
                "{} is held at the end, by {} for {} ms more (token {})",
                row.key, row.holder, row.remaining_ms, row.token
            ),
            Self::MoneyLost(accounts) => write!(f, "money was lost or made: {accounts:?}"),
            Self::TransferLost { id } => write!(f, "transfer {id} was committed and is not in the ledger"),
            Self::Miscounted { key, number, found } => {
                write!(f, "the counter of {key} should have {number} and has {found}")
            }
            Self::CommittedTokenFell {
                key,
                number,
                token,
                before,
            } => write!(
                f,
                "number {number} of {key} was committed with token {token} after {before}"
            ),
            Self::CommitUndone {
                process,
                call,
                committed,
            } => {
                let (told, is) = if *committed {
                    ("committed", "is not in the database")
                } else {
                    ("rolled back", "is in the database")
                };
                write!(
                    f,
                    "process {process} call {call} was told that it was {told}, and it {is}"
                )
            }
            Self::NotLinearizable(violation) => write!(f, "{violation}"),
            Self::Once { fault, end } => write!(f, "{}: {end:?}", fault.name()),
            Self::OnceRefused { run, text } => write!(f, "run {run} ended without a reason: {text}"),
            Self::Crashed { process, code } => write!(f, "process {process} ended by itself with {code:?}"),
            Self::Stuck { process } => write!(f, "process {process} did not end when it was asked to"),
            Self::Dead { key } => write!(f, "nobody entered {key} after the faults were over"),
            Self::StoreFailed { key, text, .. } => {
                write!(f, "the store failed a call on {key} without a fault: {text}")
            }
            Self::Unfinished => write!(f, "the history has no end"),
            _ => self.tell_of_time(f),
        }
    }
}

impl Finding {
    /// The events that came too soon, too late, or never.
    fn tell_of_time(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HoldMinCut {
                key,
                first,
                second,
                early,
            } => {
                let ms = early / MS;
                write!(f, "{key} was to be kept for {ms} ms more: {first} and {second}")
            }
            Self::TicketCut {
                key,
                first,
                second,
                early,
            } => {
                let ms = early / MS;
                write!(
                    f,
                    "a ticket was to keep {key} for {ms} ms more: {first} and {second}"
                )
            }
            Self::TicketRefused {
                key, process, call, ..
            } => write!(
                f,
                "process {process} call {call} was refused a good ticket of {key}"
            ),
            Self::AboveLimit {
                key,
                who,
                limit,
                others,
            } => write!(
                f,
                "{who} entered {key} beside {others} others, with a limit of {limit}"
            ),
            Self::HeldTooLong { key, who, late } => {
                let ms = late / MS;
                write!(f, "{key} was held for {ms} ms longer than its max_hold: {who}")
            }
            Self::LostForNothing {
                key, process, call, ..
            } => write!(
                f,
                "process {process} call {call} lost {key} although nothing but slow commits was wrong"
            ),
            Self::Starved {
                key,
                process,
                call,
                passed_over,
                overtakers,
                ..
            } => {
                let ms = passed_over / MS;
                write!(
                    f,
                    "process {process} call {call} waited for {key} while {overtakers} calls that asked later entered, in {ms} ms"
                )
            }
            Self::HeldByNobody {
                key, token, length, ..
            } => {
                let ms = length / MS;
                write!(
                    f,
                    "{key} was busy for {ms} ms with token {token}, which nobody had"
                )
            }
            Self::Hung {
                key,
                process,
                call,
                what,
                took,
                limit,
                ..
            } => {
                let (took, limit) = (took / MS, limit / MS);
                write!(
                    f,
                    "process {process} call {call} on {key} took {took} ms {what}, with {limit} ms allowed"
                )
            }
            Self::BusyAfterRelease {
                key,
                token,
                released,
                asked,
            } => {
                let later = (asked - released) / MS;
                write!(
                    f,
                    "{key} was busy with token {token} for a call that asked {later} ms after its release was confirmed"
                )
            }
            _ => unreachable!("is told of above"),
        }
    }
}
