//! A lock on its way from one process to another.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use uuid::Uuid;

#[cfg(doc)]
use crate::LostReason;
use crate::guard::{Holds, LockGuard};
use crate::manager::LockManager;
use crate::{Key, LockError, LockOptions};

/// The first part of a ticket's text. Another layout gets another one.
const LAYOUT: &str = "dblock1";

/// A held lock that is on its way from one process to another: from [`LockGuard::into_ticket`] to
/// [`LockManager::adopt`].
///
/// Whoever has the ticket can adopt it, once. So it travels where only the worker reads it, such as a queue:
/// as [`secret`](Self::secret), read again by `parse`, or with the feature `serde` inside of a message.
/// `Debug` leaves the secret out, and there is no `Display`. While the ticket is not adopted, the secret is
/// also the `lease_id` in the key's row: who can read the lock table can adopt the ticket.
///
/// ```
/// use std::time::Duration;
/// use dblock::{LockManager, Ticket};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let store = dblock::store::MemoryStore::new();
/// # let locks = LockManager::builder(store.clone()).build().await?;
/// # let of_the_worker = LockManager::builder(store).build().await?;
/// let guard = locks.lock("order:42").acquire().await?;
/// let message = guard.into_ticket(Duration::from_mins(1)).await?.secret();
///
/// // In the worker, within a minute:
/// let ticket: Ticket = message.parse()?;
/// let guard = of_the_worker.adopt(&ticket).await?;
/// assert_eq!(guard.key(), "order:42");
/// guard.release().await?;
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "nobody else can adopt the lock: without its ticket the key stays busy until that has expired"]
pub struct Ticket {
    /// With the namespace.
    key: Key,
    ttl: Duration,
    lease_id: Uuid,
}

impl Ticket {
    /// The whole ticket as text, in printable characters as far as the key has no others. It is a secret: keep
    /// it out of logs.
    pub fn secret(&self) -> String {
        let (lease, ttl) = (self.lease_id.simple(), self.ttl.as_micros());
        format!("{LAYOUT}.{lease}.{ttl}.{}", self.key.as_str())
    }

    /// The key with the namespace before it, as the store has it.
    pub fn full_key(&self) -> &str {
        self.key.as_str()
    }
}

impl FromStr for Ticket {
    type Err = LockError;

    /// Reads the text of [`secret`](Self::secret).
    ///
    /// # Errors
    /// [`LockError::Invalid`]. The message does not repeat the text.
    fn from_str(text: &str) -> Result<Self, LockError> {
        let read = || {
            let mut parts = text.splitn(4, '.');
            let layout = parts.next()?;
            let lease_id = parts.next()?.parse().ok()?;
            let ttl = Duration::from_micros(parts.next()?.parse().ok()?);
            let key = Key::new(None, parts.next()?).ok()?;
            let ticket = Self { key, ttl, lease_id };
            let fits = layout == LAYOUT && LockOptions::new().ttl(ttl).check().is_ok();
            fits.then_some(ticket)
        };
        read().ok_or_else(|| {
            LockError::invalid("this is no ticket: give the text of `Ticket::secret`, whole and unchanged")
        })
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("key", &self.key)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// As the text of [`Ticket::secret`].
#[cfg(feature = "serde")]
impl serde::Serialize for Ticket {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.secret())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Ticket {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl LockGuard {
    /// Ends the guard and puts the lock into a ticket, for [`LockManager::adopt`] in another process or in this
    /// one. The key stays busy all the time, and nobody who waits for it is woken. The ticket lasts `ttl` from
    /// now and is not renewed. If it is not adopted by then, the key is free as after any lease that expires.
    ///
    /// The ticket has a fence token of its own, and the owner that adopts it a larger one. So a resource that
    /// remembers tokens refuses what this owner writes after the adopter's first write.
    ///
    /// # Errors
    /// After an error there is no ticket, and the guard has ended as if it was dropped.
    ///
    /// - [`LockError::Invalid`] for a `ttl` that [`LockOptions::ttl`] does not allow, for a guard of several
    ///   keys, for a lock with `hold_min`, and while the lock has another hold, such as a nested call, which
    ///   then keeps it.
    /// - [`LockError::Lost`] when the lease has ended, or an operator has revoked it.
    /// - [`LockError::Unconfirmed`] when the store did not confirm before the lease ended, or has no tickets
    ///   ([`StoreErrorKind::Unsupported`](crate::store::StoreErrorKind::Unsupported)). An open transaction that called
    ///   `verify_in` keeps the row locked: commit it first.
    ///
    /// After an error the lock is released, as after a drop of the guard.
    ///
    /// # Cancel safety
    /// Once polled, the guard has ended. If the future is dropped then, nobody has the ticket, and the lock is released.
    ///
    /// ```
    /// use std::time::Duration;
    /// use dblock::LockManager;
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.lock("order:42").acquire().await?;
    /// let ticket = guard.into_ticket(Duration::from_mins(1)).await?;
    /// assert!(locks.lock("order:42").try_acquire().await?.is_none());
    /// # locks.adopt(&ticket).await?.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn into_ticket(self, ttl: Duration) -> Result<Ticket, LockError> {
        LockOptions::new().ttl(ttl).check()?;
        let Holds::One(hold) = self.into_holds() else {
            let message =
                "a ticket is for one key: take the keys by one guard each, and make a ticket of each";
            return Err(LockError::invalid(message));
        };
        let lease = hold.lease();
        if lease.keeps_hold_min() {
            let message = "a lock with hold_min cannot go into a ticket: its adopter would not keep hold_min";
            return Err(LockError::invalid(message));
        }
        lease.check_alone()?;
        // Not of the engine's kind, whose bits are guessable in part: they are a time.
        let lease_id = Uuid::new_v4();
        let key = lease.key().clone();
        hold.transfer(lease_id, ttl).await?;
        Ok(Ticket { key, ttl, lease_id })
    }
}

impl LockManager {
    /// Takes the lock out of a ticket. The guard is that of a fresh lease with the default options: it is
    /// renewed, with a ttl of 30 seconds, which [`LockGuard::extend`] changes. Its fence token is larger than all
    /// before.
    ///
    /// A ticket is adopted once. The request is repeated with one lease until the store has answered, for the
    /// ticket's ttl at most, so that an answer that was lost loses nothing.
    ///
    /// # Errors
    /// - [`LockError::Lost`] with [`LostReason::Ticket`] when the ticket is over: it was adopted before, was not
    ///   adopted in time, or its lock was freed or revoked by an operator. A text that somebody has made up gets
    ///   the same answer.
    /// - [`LockError::Invalid`] for a ticket of another namespace.
    /// - [`LockError::Store`] when the store refuses for good, such as one without tickets, and a
    ///   [`LockError::Timeout`] when it did not answer in time.
    /// - [`LockError::Shutdown`] after [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// If the future is dropped, the ticket can still be adopted, or the lock has come here and is released.
    /// If that release fails, the lease expires.
    ///
    /// ```
    /// use std::time::Duration;
    /// use dblock::{LockError, LockManager, LostReason};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.lock("order:42").acquire().await?;
    /// let ticket = guard.into_ticket(Duration::from_mins(1)).await?;
    ///
    /// let guard = locks.adopt(&ticket).await?;
    /// let again = locks.adopt(&ticket).await.unwrap_err();
    /// assert!(matches!(again, LockError::Lost { reason: LostReason::Ticket, .. }));
    /// guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn adopt(&self, ticket: &Ticket) -> Result<LockGuard, LockError> {
        let full = ticket.key.as_str();
        let namespace = self.namespace();
        let typed = match namespace {
            None => Some(full),
            Some(namespace) => full
                .strip_prefix(namespace)
                .and_then(|rest| rest.strip_prefix(':')),
        };
        let key = typed.and_then(|typed| Key::new(namespace, typed).ok());
        let key = key.ok_or_else(|| {
            LockError::invalid(
                "the ticket's key is not in this manager's namespace: adopt it by a manager that has the \
                                namespace of the one that made it",
            )
        })?;
        let hold = self.hold_ticket(&key, ticket.lease_id, ticket.ttl).await?;
        Ok(LockGuard::new(Holds::One(hold), 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(key: &str) -> Ticket {
        Ticket {
            key: Key::new(None, key).unwrap(),
            ttl: Duration::from_mins(1),
            lease_id: Uuid::new_v4(),
        }
    }

    #[test]
    fn the_text_gives_the_same_ticket_whatever_the_key() {
        for key in ["order:42", "a.b.c", ".", "billing:ö 1"] {
            let ticket = ticket(key);
            assert_eq!(ticket.secret().parse::<Ticket>().unwrap(), ticket);
        }
    }

    #[test]
    fn debug_has_no_secret() {
        let ticket = ticket("order:42");
        let shown = format!("{ticket:?}");
        assert!(shown.contains("order:42"), "{shown}");
        for secret in [
            ticket.lease_id.simple().to_string(),
            ticket.lease_id.to_string(),
            ticket.secret(),
        ] {
            assert!(!shown.contains(&secret), "{shown}");
        }
    }

    #[test]
    fn what_is_no_ticket_is_refused_and_not_repeated() {
        let good = ticket("k").secret();
        let lease = good.split('.').nth(1).unwrap().to_owned();
        for text in [
            "",
            "order:42",
            &good.replace(LAYOUT, "dblock2"),
            &good.replace(&lease, "0"),
            &good[..good.len() - 1],
            &format!("{LAYOUT}.{lease}.1.k"),
        ] {
            let error = text.parse::<Ticket>().unwrap_err();
            assert!(matches!(error, LockError::Invalid { .. }), "{text}: {error:?}");
            assert!(!error.to_string().contains(&lease));
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn it_travels_in_a_message() {
        let ticket = ticket("order:42");
        let json = serde_json::to_string(&ticket).unwrap();
        assert_eq!(serde_json::from_str::<Ticket>(&json).unwrap(), ticket);
        assert!(serde_json::from_str::<Ticket>("\"no\"").is_err());
    }
}
