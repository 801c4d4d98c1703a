//! The scripts, and a request as they read it.

use std::time::Duration;

use dblock_core::store::clock::micros;
use dblock_core::store::{Action, Enter, NEXT_TTL, QUEUE_AHEAD, Request, StoreError, StoreErrorKind};
use redis::Script;

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

/// Adds one request, packed as `apply.lua` reads it. [`check`] has let it pass. Without `passes_on` no lease
/// becomes a successor: the waiter is told that the key is busy, and asks again once it is released.
pub(crate) fn add(packed: &mut Vec<u8>, request: &Request, passes_on: bool) {
    let letter = match &request.action {
        Action::Acquire(_) => b'A',
        Action::Extend(ask) if ask.share.is_some() => b'S',
        Action::Extend(ask) if ask.handed_over.is_some() => b'H',
        Action::Extend(_) => b'E',
        Action::Transfer(_) => b'P',
        _ => b'R',
    };
    packed.push(letter);
    packed.extend(request.lease_id.as_bytes());
    match &request.action {
        Action::Acquire(ask) => {
            packed.extend(ask.owner.as_bytes());
            packed.extend(micros(ask.ttl).to_le_bytes());
            packed.extend(optional(ask.wanted_for));
            packed.extend(optional(ask.queue.filter(|_| passes_on)));
            packed.extend(ask.spare_tokens.to_le_bytes());
            packed.extend(ask.limit.unwrap_or(0).to_le_bytes());
            add_text(packed, &ask.holder);
        }
        Action::Extend(ask) => {
            packed.extend(ask.count.to_le_bytes());
            packed.extend(micros(ask.ttl).to_le_bytes());
            if let Some(share) = &ask.share {
                let enter = share.enter.unwrap_or_else(|| Enter::new(0, 0, Duration::ZERO));
                packed.extend(share.number.to_le_bytes());
                packed.extend(enter.count.to_le_bytes());
                packed.extend(enter.limit.to_le_bytes());
                packed.extend(micros(enter.waited).to_le_bytes());
                packed.extend(micros(enter.wanted_for).to_le_bytes());
            } else if let Some(to) = &ask.handed_over {
                packed.extend(token(to.fence_token).as_bytes());
                packed.extend(to.owner.as_bytes());
                add_text(packed, &to.holder);
            }
        }
        Action::Transfer(ask) => {
            packed.extend(ask.to.as_bytes());
            packed.extend(ask.owner.as_bytes());
            packed.extend(micros(ask.ttl).to_le_bytes());
            add_text(packed, &ask.holder);
        }
        _ => {}
    }
}

/// A text behind its length. A longer one than the contract allows is cut.
fn add_text(packed: &mut Vec<u8>, text: &str) {
    let length = u8::try_from(text.floor_char_boundary(u8::MAX.into())).unwrap_or(u8::MAX);
    packed.push(length);
    packed.extend(&text.as_bytes()[..length.into()]);
}

/// Whether the script knows the action.
pub(crate) fn check(action: &Action) -> Result<(), StoreError> {
    match action {
        Action::Acquire(_) | Action::Extend(_) | Action::Release | Action::Transfer(_) => Ok(()),
        other => Err(StoreError::new(
            StoreErrorKind::Unsupported,
            format!("this version of dblock-redis does not know the request {other:?}; upgrade it"),
        )),
    }
}

/// The length of a token in rows and messages, in digits.
pub(crate) const TOKEN: usize = 19;

/// A token as the rows have it. Tokens are never negative.
pub(crate) fn token(token: i64) -> String {
    format!("{:0TOKEN$}", token.max(0))
}

fn optional(length: Option<Duration>) -> [u8; 8] {
    length.map_or(-1, micros).to_le_bytes()
}
