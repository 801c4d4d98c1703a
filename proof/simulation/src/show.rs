//! Ids and events in readable form.

use dblock_core::machine::call::Call;
use dblock_core::machine::env::Time;
use dblock_core::machine::out::Refusal;
use dblock_core::store::{self, Action, Outcome, Request, StoreError};
use uuid::Uuid;

use crate::store::WakeUp;

/// Operators have no process.
const OPERATOR: usize = 0xff;

pub(crate) fn lease_id(process: usize, incarnation: u32, number: u64) -> Uuid {
    Uuid::from_u128((process as u128) << 96 | u128::from(incarnation) << 64 | u128::from(number))
}

pub(crate) fn operators_id(number: u64) -> Uuid {
    lease_id(OPERATOR, 0, number)
}

pub(crate) fn owner_id(caller: usize) -> Uuid {
    Uuid::from_u128(1 << 127 | caller as u128)
}

/// The process that made a lease id, and its incarnation.
#[allow(clippy::cast_possible_truncation, reason = "so it was put together")]
pub(crate) fn whose(lease: Uuid) -> (usize, u32) {
    let id = lease.as_u128();
    ((id >> 96) as usize, (id >> 64) as u32)
}

pub(crate) fn lease(lease: Uuid) -> String {
    let (process, _) = whose(lease);
    let number = lease.as_u128() & u128::from(u64::MAX);
    if process == OPERATOR {
        format!("lease {number} of an operator")
    } else {
        format!("lease P{process}.{number}")
    }
}

pub(crate) fn request(request: &Request) -> String {
    let lease = lease(request.lease_id);
    match &request.action {
        Action::Acquire(ask) => {
            let owner = ask.owner.as_u128() & 0xffff;
            let (ttl, spare, queue) = (ask.ttl, ask.spare_tokens, ask.queue);
            format!("acquire {lease} for caller {owner}, ttl {ttl:?}, spare {spare}, queue {queue:?}")
        }
        Action::Extend(extend) => {
            let to = extend
                .handed_over
                .as_ref()
                .map(|to| (to.owner.as_u128() & 0xffff, to.fence_token));
            format!(
                "extend {lease}, count {}, ttl {:?}, handed over {to:?}, share {:?}",
                extend.count, extend.ttl, extend.share
            )
        }
        _ => format!("release {lease}"),
    }
}

pub(crate) fn answer(answer: &Result<Outcome, StoreError>) -> String {
    match answer {
        Ok(Outcome::Granted {
            fence_token,
            remaining,
            taken_over,
            wanted,
            ..
        }) => {
            let over = if taken_over.is_some() { ", taken over" } else { "" };
            format!("granted, token {fence_token}, {remaining:?} left, wanted {wanted}{over}")
        }
        Ok(Outcome::Busy(by)) => format!("busy, token {}, {:?} left", by.fence_token, by.remaining),
        Ok(Outcome::Queued { holder, next_ttl, .. }) => {
            format!(
                "queued behind token {}, {:?} left, next ttl {next_ttl:?}",
                holder.fence_token, holder.remaining
            )
        }
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("{:?}", error.kind()),
    }
}

pub(crate) fn wake_up(wake_up: &WakeUp) -> String {
    match &wake_up.says {
        store::WakeUp::PassedOn {
            lease_id,
            fence_token,
            ..
        } => format!(
            "that it was passed on to {} with token {fence_token}",
            lease(*lease_id)
        ),
        store::WakeUp::MayEnter { inside, next, .. } => {
            let next = next.map_or_else(|| "nobody".to_owned(), |(next, _)| lease(next));
            format!("that {inside} share it, and {next} comes first")
        }
        _ => "that it was released".to_owned(),
    }
}

pub(crate) fn call(call: &Call, now: Time) -> String {
    let (wait, options) = (call.deadline.map(|deadline| deadline.since(now)), &call.options);
    let mut text = format!("for {wait:?}, ttl {:?}", options.ttl);
    let limit = options.limit.map(|limit| format!("shared by {limit}"));
    for (set, name) in [
        (limit.is_some(), limit.as_deref().unwrap_or_default()),
        (call.is_non_blocking(), "non-blocking"),
        (!options.renew, "without renewal"),
        (options.max_hold.is_some(), "max_hold"),
        (options.hold_min.is_some(), "hold_min"),
    ] {
        if set {
            text.push_str(", ");
            text.push_str(name);
        }
    }
    text
}

pub(crate) fn refusal(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Busy(_) => "busy".to_owned(),
        Refusal::RowLocked => "row locked".to_owned(),
        Refusal::TicketOver => "ticket over".to_owned(),
        Refusal::NoAnswer => "no answer".to_owned(),
        Refusal::Store(error) => format!("{:?}", error.kind()),
        Refusal::Shutdown => "shutdown".to_owned(),
    }
}
