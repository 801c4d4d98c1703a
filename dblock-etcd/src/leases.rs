//! The etcd leases of this process's grants. To make one and to revoke it are a commit each, so a lease whose lock was released is
//! used again, by a later grant with the same ttl.
//!
//! A lease has one lock at a time. It has another one only after
//!
//! - the acquire of the last one was answered, so that nothing late can write under it, and
//! - the release has deleted the key and was answered.
//!
//! All other leases are revoked, or end by themselves.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dblock::store::StoreError;
use etcd_client::Client;
use uuid::Uuid;

use crate::look;
use crate::row::etcd_lease;

/// By how much a lease is longer than a ttl of [`LONG`] or more. For so long after its last renewal it needs none to be used again.
const LONGER: i64 = 1;
const LONG: i64 = 10;

/// The length of a new lease for this ttl, both in seconds.
fn length(ttl: i64) -> i64 {
    if ttl < LONG { ttl } else { ttl + LONGER }
}

#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By the id of the grant.
    used: HashMap<Uuid, Used>,
    idle: Vec<Lease>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    id: i64,
    /// In seconds.
    ttl: i64,
    /// It had its whole length then, or later.
    whole_at: Moment,
}

/// A time by both clocks. The monotonic one stands still while a host is suspended, and etcd's does not.
#[derive(Debug, Clone, Copy)]
struct Moment(Instant, SystemTime);

impl Moment {
    fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    /// The longer of the times that have passed; none where the wall clock was set back.
    fn elapsed(self) -> Option<Duration> {
        let by_wall_clock = self.1.elapsed().ok()?;
        Some(by_wall_clock.max(self.0.elapsed()))
    }
}

#[derive(Debug)]
struct Used {
    lease: Lease,
    /// The revision at which the grant's key was created. `None` until that was answered.
    created: Option<i64>,
}

impl Leases {
    /// A lease of which `ttl` is left, for a grant: one that was used before, or a new one.
    pub(crate) async fn of_whole_length(
        &self,
        client: &mut Client,
        grant: Uuid,
        ttl: i64,
    ) -> Result<i64, StoreError> {
        if let Some((idle, is_whole)) = self.take(grant, ttl) {
            let sent_at = Moment::now();
            if is_whole {
                return Ok(idle);
            }
            if look::keep_alive(client, idle).await? {
                self.renewed(grant, sent_at);
                return Ok(idle);
            }
            self.forget(grant);
        }
        let new = self.make(grant, ttl);
        let is_new = look::grant(client, new, length(ttl)).await?;
        if !is_new {
            look::keep_alive(client, new).await?;
        }
        Ok(new)
    }

    /// Takes an idle lease for a grant. Returns its id, and whether `ttl` is left of it. If not, it may have ended.
    fn take(&self, grant: Uuid, ttl: i64) -> Option<(i64, bool)> {
        let mut state = self.state();
        if state.used.contains_key(&grant) {
            // The request is sent again, and may still be carried out under its first lease.
            return None;
        }
        let is_younger =
            |lease: &Lease, than: i64| lease.whole_at.elapsed().is_some_and(|age| age < seconds(than));
        state.idle.retain(|lease| is_younger(lease, length(lease.ttl)));
        let place = state.idle.iter().rposition(|lease| lease.ttl == ttl)?;
        let lease = state.idle.swap_remove(place);
        state.used.insert(grant, Used { lease, created: None });
        Some((lease.id, is_younger(&lease, length(ttl) - ttl)))
    }

    /// The id of a lease to be made for a grant: the same for a request that is sent again.
    fn make(&self, grant: Uuid, ttl: i64) -> i64 {
        let mut state = self.state();
        let new = || Used {
            lease: Lease {
                // Not made of the grant's id: the lease may serve others later.
                id: etcd_lease(Uuid::now_v7()),
                ttl,
                whole_at: Moment::now(),
            },
            created: None,
        };
        state.used.entry(grant).or_insert_with(new).lease.id
    }

    /// The grant's lease had its whole length at this time.
    fn renewed(&self, grant: Uuid, whole_at: Moment) {
        if let Some(used) = self.state().used.get_mut(&grant) {
            used.lease.whole_at = whole_at;
        }
    }

    /// The acquire was answered: the grant's key was created at this revision.
    pub(crate) fn granted(&self, grant: Uuid, revision: i64) {
        if let Some(used) = self.state().used.get_mut(&grant) {
            used.created = Some(revision);
        }
    }

    /// The revision at which the grant's key was created, if that is known and its lease is one of these.
    pub(crate) fn created(&self, grant: Uuid) -> Option<i64> {
        self.state().used.get(&grant)?.created
    }

    /// The lease of a grant.
    pub(crate) fn of(&self, grant: Uuid) -> Option<i64> {
        self.state().used.get(&grant).map(|used| used.lease.id)
    }

    /// The grant has no key, and will have none. Its lease is idle from now on.
    pub(crate) fn rest(&self, grant: Uuid) {
        let mut state = self.state();
        if let Some(used) = state.used.remove(&grant) {
            state.idle.push(used.lease);
        }
    }

    /// The grant is over, or has another lease. This one is not used again.
    pub(crate) fn forget(&self, grant: Uuid) {
        self.state().used.remove(&grant);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_has_one_lock_at_a_time_and_another_when_it_rests() {
        let leases = Leases::default();
        let [one, two, three] = [(); 3].map(|()| Uuid::now_v7());
        assert_eq!(leases.take(one, 30), None);
        let made = leases.make(one, 30);
        assert_eq!(leases.make(one, 30), made, "the request is sent again");
        assert_eq!(leases.created(one), None, "it may not have been carried out yet");
        leases.granted(one, 7);
        assert_eq!(leases.created(one), Some(7));
        assert_eq!(leases.take(two, 30), None, "it is used");
        leases.rest(one);
        assert_eq!(leases.take(two, 60), None, "another length");
        assert_eq!(leases.take(two, 30), Some((made, true)));
        assert_eq!((leases.of(two), leases.created(two)), (Some(made), None));
        assert_eq!(leases.take(three, 30), None);
        leases.make(three, 30);
        leases.rest(three);
        assert_eq!(leases.take(two, 30), None, "it has one");
        leases.take(three, 30);
        leases.forget(three);
        leases.forget(two);
        leases.rest(two);
        assert_eq!(leases.take(three, 30), None, "it was forgotten");
    }

    #[test]
    fn a_lease_that_rests_is_renewed_before_too_little_is_left_and_dropped_when_it_has_ended() {
        let leases = Leases::default();
        let grant = Uuid::now_v7();
        for (ttl, age, expected) in [
            (30, 0, Some(true)),
            (30, 2, Some(false)),
            (30, 32, None),
            (5, 0, Some(false)),
            (5, 6, None),
        ] {
            let Moment(monotonic, wall) = Moment::now();
            let earlier = monotonic.checked_sub(seconds(age)).unwrap();
            // Of a host that was suspended, too.
            for whole_at in [Moment(earlier, wall), Moment(monotonic, wall - seconds(age))] {
                leases.make(grant, ttl);
                leases.renewed(grant, whole_at);
                leases.rest(grant);
                let taken = leases.take(grant, ttl).map(|(_, is_whole)| is_whole);
                assert_eq!(taken, expected, "{ttl} s, {age} s old");
                leases.forget(grant);
            }
        }
    }
}
