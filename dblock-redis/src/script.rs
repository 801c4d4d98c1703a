//! The scripts, and the words of a request for them.

use std::time::Duration;

use dblock::store::clock::micros;
use dblock::store::{Action, NEXT_TTL, QUEUE_AHEAD, Request, StoreError, StoreErrorKind};
use redis::Script;

use crate::call::Call;

/// The beginning of every script.
pub(crate) const ROW: &str = include_str!("lua/row.lua");

#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) apply: Script,
    pub(crate) operate: Script,
    pub(crate) look: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let script = |text: &str| Script::new(&format!("{ROW}{text}"));
        let apply = include_str!("lua/apply.lua")
            .replace("@QUEUE_AHEAD@", &micros(QUEUE_AHEAD).to_string())
            .replace("@NEXT_TTL@", &micros(NEXT_TTL).to_string());
        Self {
            apply: script(&apply),
            operate: script(include_str!("lua/operate.lua")),
            look: script(include_str!("lua/look.lua")),
        }
    }
}

/// Adds the words of one request, which [`check`] has let pass. Without `passes_on` no lease becomes a successor: the waiter is
/// told that the key is busy, and asks again once it is released.
pub(crate) fn add(call: &mut Call<'_>, request: &Request, passes_on: bool) {
    let word = |letter: &str, call: &mut Call<'_>| {
        call.arg(letter).arg(request.lease_id.as_bytes());
    };
    match &request.action {
        Action::Acquire(ask) => {
            word("A", call);
            call.arg(ask.owner.as_bytes())
                .arg(&*ask.holder)
                .arg(micros(ask.ttl))
                .arg(optional(ask.wanted_for))
                .arg(optional(ask.queue.filter(|_| passes_on)))
                .arg(ask.spare_tokens);
        }
        Action::Extend(ask) => {
            word("E", call);
            call.arg(ask.count).arg(micros(ask.ttl));
            match &ask.handed_over {
                Some(to) => call
                    .arg(to.owner.as_bytes())
                    .arg(&*to.holder)
                    .arg(token(to.fence_token)),
                None => call.arg("").arg("").arg(""),
            };
        }
        _ => word("R", call),
    }
}

/// Whether the script knows the action.
pub(crate) fn check(action: &Action) -> Result<(), StoreError> {
    match action {
        Action::Acquire(_) | Action::Extend(_) | Action::Release => Ok(()),
        other => Err(StoreError::new(
            StoreErrorKind::Unsupported,
            format!("this version of dblock-redis does not know the request {other:?}; upgrade it"),
        )),
    }
}

/// A token as the rows have it: in 19 digits. Tokens are never negative.
pub(crate) fn token(token: i64) -> String {
    format!("{:019}", token.max(0))
}

fn optional(length: Option<Duration>) -> String {
    length
        .map(|length| micros(length).to_string())
        .unwrap_or_default()
}
