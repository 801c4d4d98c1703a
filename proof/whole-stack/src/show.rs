//! Requests and answers in words that are the same in each run of a seed.

use dblock::LockError;
use dblock::store::{Action, Outcome, Request, StoreError, WakeUp};

use crate::world::World;

impl World {
    pub(crate) fn request(&self, request: &Request) -> String {
        let lease = self.lease(request.lease_id);
        let what = match &request.action {
            Action::Acquire(ask) => format!(
                "acquire {lease} for {:?}, wanted for {:?}, queue {:?}, spare {}, limit {:?}",
                ask.ttl, ask.wanted_for, ask.queue, ask.spare_tokens, ask.limit
            ),
            Action::Extend(ask) => {
                let named = ask.handed_over.is_some();
                format!(
                    "extend {lease} for {:?}, count {}, named {named}, share {:?}",
                    ask.ttl, ask.count, ask.share
                )
            }
            Action::Release => format!("release {lease}"),
            Action::Transfer(ask) => format!("transfer {lease} to {} for {:?}", self.lease(ask.to), ask.ttl),
            other => format!("{other:?}"),
        };
        format!("{}: {what}", request.key.as_str())
    }

    pub(crate) fn answer(&self, answer: &Result<Outcome, StoreError>) -> String {
        match answer {
            Ok(Outcome::Granted {
                fence_token,
                remaining,
                taken_over,
                wanted,
                ..
            }) => {
                let (token, over) = (self.token(*fence_token), taken_over.is_some());
                format!("granted, token {token}, {remaining:?} left, taken over {over}, wanted {wanted}")
            }
            Ok(Outcome::Busy(holder)) => {
                format!(
                    "busy, token {}, {:?} left",
                    self.token(holder.fence_token),
                    holder.remaining
                )
            }
            Ok(Outcome::Queued { holder, next_ttl, .. }) => {
                let token = self.token(holder.fence_token);
                format!(
                    "queued behind token {token}, {:?} left, next {next_ttl:?}",
                    holder.remaining
                )
            }
            Ok(other) => format!("{other:?}"),
            Err(error) => format!("{:?}", error.kind()),
        }
    }

    pub(crate) fn wake_up(&self, wake_up: &WakeUp) -> String {
        match wake_up {
            WakeUp::Released(key) => format!("{} was released", key.as_str()),
            WakeUp::PassedOn {
                key,
                lease_id,
                fence_token,
                ..
            } => {
                let (lease, token) = (self.lease(*lease_id), self.token(*fence_token));
                format!("{} was passed on to {lease} with token {token}", key.as_str())
            }
            WakeUp::MayEnter {
                key, inside, next, ..
            } => {
                let next = next.map_or_else(|| "nobody".to_owned(), |(next, _)| self.lease(next));
                format!("{} is shared by {inside}, and {next} comes first", key.as_str())
            }
            other => format!("{other:?}"),
        }
    }

    /// A token counts from the first one that a run can give.
    pub(crate) fn token(&self, token: i64) -> i64 {
        token - self.server.first_token
    }
}

/// Without ids, tokens and names of holders.
pub(crate) fn error(error: &LockError) -> String {
    match error {
        LockError::Timeout { cause, .. } => format!("timeout, {cause:?}"),
        LockError::Lost { reason, .. } => format!("lost, {reason:?}"),
        LockError::Store { source, .. } => format!("store, {:?}", source.kind()),
        LockError::Unconfirmed { source, .. } => format!("unconfirmed, {:?}", source.kind()),
        LockError::Busy { .. } => "busy".to_owned(),
        LockError::Shutdown { .. } => "shutdown".to_owned(),
        other => other.to_string(),
    }
}
