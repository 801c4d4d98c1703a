//! The etcd leases of this process's grants. To make one and to revoke it are a commit each, so a lease whose
//! lock was released is used again, by a later grant with the same ttl.
//!
//! A lease has one lock at a time. It has another one only after
//!
//! - the acquire of the last one was answered, so that nothing late can write under it, and
//! - the release has deleted the key and was answered.
//!
//! All other leases are revoked, or end by themselves.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dblock_core::Key;
use dblock_core::store::StoreError;
use dblock_core::store::events::{self, Event};
use etcd_client::Client;
use futures_util::future::join_all;
use uuid::Uuid;

use crate::row::etcd_lease;
use crate::{NAME, look};

/// By how much a lease is longer than a ttl of [`LONG`] or more. For so long after its last renewal it needs
/// none to be used again.
const LONGER: i64 = 1;
const LONG: i64 = 10;

/// So many leases are kept for later grants. Those beyond are revoked.
const MOST_IDLE: usize = 1_000;

/// The length of a new lease for this ttl, both in seconds.
fn length(ttl: i64) -> i64 {
    if ttl < LONG {
        ttl
    } else {
        ttl.saturating_add(LONGER)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By the id of the grant.
    used: HashMap<Uuid, Used>,
    /// When there are so many, those that have ended are forgotten.
    most_used: usize,
    /// The last one was used last.
    idle: Vec<Lease>,
}

#[derive(Debug, Clone)]
struct Lease {
    id: i64,
    /// In seconds.
    ttl: i64,
    /// The key of its last lock, if nobody was next: it is probably free still.
    freed: Option<Key>,
    /// It had its whole length then, or later. The clock may have stood still since, with the host.
    whole_at: Instant,
}

impl Lease {
    /// Whether it was renewed less than so many seconds ago, by this process's clock.
    fn is_younger(&self, than: i64) -> bool {
        self.whole_at.elapsed() < Duration::from_secs(u64::try_from(than).unwrap_or_default())
    }
}

#[derive(Debug)]
struct Used {
    lease: Lease,
    /// The revision at which the grant's key was created. `None` until that was answered.
    created: Option<i64>,
}

impl Leases {
    /// Whether this process was the last to have the key, as far as it knows.
    pub(crate) fn has_freed(&self, key: &Key, ttl: i64) -> bool {
        let state = self.state();
        let of_key = |lease: &Lease| lease.ttl == ttl && lease.freed.as_ref() == Some(key);
        state.idle.iter().any(of_key)
    }

    /// A lease for a grant of this key: one that was used before, or a new one.
    pub(crate) async fn take(
        &self,
        client: &mut Client,
        grant: Uuid,
        key: &Key,
        ttl: i64,
    ) -> Result<i64, StoreError> {
        if let Some(idle) = self.reuse(grant, key, ttl) {
            return Ok(idle);
        }
        let new = self.make(grant, ttl);
        look::grant(client, new, length(ttl)).await?;
        Ok(new)
    }

    /// Sees that the leases of these grants have their whole ttl, and returns the grants for which that
    /// failed. It runs beside the writes under them, so that it notices what has held us up before those.
    pub(crate) async fn renew(&self, client: &Client, grants: &[Uuid]) -> Vec<Uuid> {
        let lease = |grant: &Uuid| Some((*grant, self.state().used.get(grant)?.lease.clone()));
        let (mut young, mut others): (Vec<_>, Vec<_>) = grants
            .iter()
            .filter_map(lease)
            .partition(|(_, lease)| lease.ttl >= LONG && lease.is_younger(LONGER));
        // Our clock may have stood still, so etcd's is asked for the one that was renewed first. The others
        // have more left.
        if let Some((_, first)) = young.iter().min_by_key(|(_, lease)| lease.whole_at) {
            let left = look::left(&mut client.clone(), first.id).await;
            if !left.is_ok_and(|left| left >= Some(first.ttl)) {
                others.append(&mut young);
            }
        }
        let renewals = others.into_iter().map(|(grant, lease)| async move {
            let sent_at = Instant::now();
            let is_there = look::keep_alive(&mut client.clone(), lease.id).await;
            if matches!(is_there, Ok(true)) {
                self.renewed(grant, sent_at);
                return None;
            }
            Some(grant)
        });
        join_all(renewals).await.into_iter().flatten().collect()
    }

    /// Takes an idle lease for a grant, if it can be that of the key's last lock. It may have ended in etcd.
    fn reuse(&self, grant: Uuid, key: &Key, ttl: i64) -> Option<i64> {
        let mut state = self.state();
        if state.used.contains_key(&grant) {
            // The request is sent again, and may still be carried out under its first lease.
            return None;
        }
        state.idle.retain(|lease| lease.is_younger(lease.ttl / 2));
        let fits = |lease: &Lease| lease.ttl == ttl;
        let of_key = |lease: &Lease| fits(lease) && lease.freed.as_ref() == Some(key);
        let place = state.idle.iter().rposition(of_key);
        let place = place.or_else(|| state.idle.iter().rposition(fits))?;
        let mut lease = state.idle.remove(place);
        lease.freed = None;
        let id = lease.id;
        state.used.insert(grant, Used { lease, created: None });
        drop(state);
        tracing::trace!(lease = id, "a lease that rested is used again");
        events::note(NAME, Event::LeaseUsedAgain);
        Some(id)
    }

    /// The id of a lease to be made for a grant: the same for a request that is sent again.
    fn make(&self, grant: Uuid, ttl: i64) -> i64 {
        let mut state = self.state();
        if state.used.len() >= state.most_used {
            // A lock that is lost while etcd is away is never released. After two ttls the engine sends
            // nothing more for it.
            let lasts = |used: &Used| used.lease.is_younger(used.lease.ttl.saturating_mul(3));
            state.used.retain(|_, used| lasts(used));
            state.most_used = MOST_IDLE.max(state.used.len() * 2);
        }
        let new = || Used {
            lease: Lease {
                // Not made of the grant's id: the lease may serve others later.
                id: etcd_lease(Uuid::now_v7()),
                ttl,
                freed: None,
                whole_at: Instant::now(),
            },
            created: None,
        };
        state.used.entry(grant).or_insert_with(new).lease.id
    }

    /// The grant's lease had its whole length at this time.
    pub(crate) fn renewed(&self, grant: Uuid, whole_at: Instant) {
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

    /// These grants have no keys, and will have none. Their leases are idle from now on. With the keys that they have
    /// freed.
    pub(crate) async fn rest(&self, client: &Client, grants: Vec<(Uuid, Option<Key>)>) {
        revoke_all(client, self.lay_down(grants)).await;
    }

    /// Revokes the leases that are idle.
    pub(crate) async fn revoke_idle(&self, client: &Client) {
        let idle = std::mem::take(&mut self.state().idle);
        revoke_all(client, idle).await;
    }

    /// Makes the leases of these grants idle ones. Returns those that are too many, which were idle for
    /// longest.
    fn lay_down(&self, grants: Vec<(Uuid, Option<Key>)>) -> Vec<Lease> {
        let mut state = self.state();
        for (grant, freed) in grants {
            if let Some(used) = state.used.remove(&grant) {
                state.idle.push(Lease { freed, ..used.lease });
            }
        }
        let surplus = state.idle.len().saturating_sub(MOST_IDLE);
        state.idle.drain(..surplus).collect()
    }

    /// The grant is over, or has another lease. This one is not used again.
    pub(crate) fn forget(&self, grant: Uuid) {
        self.state().used.remove(&grant);
    }

    /// None of the leases that rest is used again. They end by themselves.
    pub(crate) fn forget_idle(&self) {
        self.state().idle.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Revokes leases that have no keys. One that cannot be revoked does nothing until it ends by itself.
async fn revoke_all(client: &Client, leases: Vec<Lease>) {
    let steps = leases
        .into_iter()
        .map(|lease| async move { look::revoke(&mut client.clone(), lease.id).await.ok() });
    join_all(steps).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new(None, "k").unwrap()
    }

    fn later(leases: &Leases, grant: Uuid, seconds: u64) {
        let earlier = Instant::now().checked_sub(Duration::from_secs(seconds));
        leases.renewed(grant, earlier.expect("the machine has run for some time"));
    }

    #[test]
    fn a_lease_has_one_lock_at_a_time_and_another_when_it_rests() {
        let leases = Leases::default();
        let ([one, two, three], key) = ([(); 3].map(|()| Uuid::now_v7()), key());
        assert_eq!(leases.reuse(one, &key, 30), None);
        let made = leases.make(one, 30);
        assert_eq!(leases.make(one, 30), made, "the request is sent again");
        assert_eq!(leases.created(one), None, "it may not have been carried out yet");
        leases.granted(one, 7);
        assert_eq!(leases.created(one), Some(7));
        assert_eq!(leases.reuse(two, &key, 30), None, "it is used");
        leases.lay_down(vec![(one, None)]);
        assert_eq!(leases.reuse(two, &key, 60), None, "another length");
        assert_eq!(leases.reuse(two, &key, 30), Some(made));
        assert_eq!((leases.of(two), leases.created(two)), (Some(made), None));
        assert_eq!(leases.reuse(three, &key, 30), None);
        leases.make(three, 30);
        leases.lay_down(vec![(three, None)]);
        assert_eq!(leases.reuse(two, &key, 30), None, "it has one");
        leases.reuse(three, &key, 30);
        leases.forget(three);
        leases.forget(two);
        leases.lay_down(vec![(two, None)]);
        assert_eq!(leases.reuse(three, &key, 30), None, "it was forgotten");
    }

    #[test]
    fn a_key_that_was_freed_here_gets_the_lease_that_it_had() {
        let leases = Leases::default();
        let grants = [(); 3].map(|()| Uuid::now_v7());
        let keys = ["a", "b", "c"].map(|name| Key::new(None, name).unwrap());
        let ids = grants.map(|grant| leases.make(grant, 30));
        let freed = grants.iter().zip(&keys);
        leases.lay_down(freed.map(|(grant, key)| (*grant, Some(key.clone()))).collect());
        assert!(leases.has_freed(&keys[0], 30) && !leases.has_freed(&keys[0], 60));
        let [first, second, _] = grants;
        assert_eq!(leases.reuse(first, &keys[0], 30), Some(ids[0]));
        assert!(
            !leases.has_freed(&keys[0], 30),
            "it may have another holder from here on"
        );
        leases.lay_down(vec![(first, None)]);
        assert!(!leases.has_freed(&keys[0], 30), "it has one");
        assert_eq!(
            leases.reuse(second, &key(), 30),
            Some(ids[0]),
            "the last one that rests"
        );
    }

    #[test]
    fn a_lease_that_may_soon_end_is_not_used_again() {
        let leases = Leases::default();
        let (grant, key) = (Uuid::now_v7(), key());
        for (age, is_used) in [(0, true), (14, true), (16, false)] {
            let made = leases.make(grant, 30);
            later(&leases, grant, age);
            leases.lay_down(vec![(grant, None)]);
            let expected = is_used.then_some(made);
            assert_eq!(leases.reuse(grant, &key, 30), expected, "{age} s old");
            leases.forget(grant);
        }
    }

    /// As that of a virtual machine that was paused, where the lock is taken after that.
    #[tokio::test]
    async fn a_lease_has_its_whole_length_although_our_clock_stood_still() {
        let Some(url) = dblock_tests::etcd_url() else {
            return;
        };
        let mut client = Client::connect([url], None).await.unwrap();
        let (leases, grant) = (Leases::default(), Uuid::now_v7());
        let lease = leases.take(&mut client, grant, &key(), 30).await.unwrap();
        while look::left(&mut client, lease).await.unwrap() > Some(28) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        leases.renewed(grant, Instant::now());
        assert!(leases.renew(&client, &[grant]).await.is_empty());
        let left = look::left(&mut client, lease).await.unwrap();
        assert!(left >= Some(30), "{left:?}");
    }

    #[test]
    fn leases_that_rest_are_bounded_and_those_that_rested_for_longest_go() {
        let leases = Leases::default();
        let grants: Vec<_> = (0..MOST_IDLE + 2).map(|_| Uuid::now_v7()).collect();
        let ids: Vec<_> = grants.iter().map(|grant| leases.make(*grant, 30)).collect();
        let surplus = leases.lay_down(grants.iter().map(|grant| (*grant, None)).collect());
        let surplus: Vec<_> = surplus.iter().map(|lease| lease.id).collect();
        assert_eq!(surplus, ids[..2]);
        assert_eq!(leases.state().idle.len(), MOST_IDLE);
    }

    /// Each lock is lost while etcd is away: no answer ever ends what is remembered of its lease.
    #[test]
    fn grants_that_nobody_releases_are_forgotten_when_nothing_more_is_sent_for_them() {
        let leases = Leases::default();
        let held = Uuid::now_v7();
        leases.make(held, 30);
        for _ in 0..MOST_IDLE * 3 {
            let lost = Uuid::now_v7();
            leases.make(lost, 30);
            later(&leases, lost, 91);
        }
        let remembered = leases.state().used.len();
        assert!(remembered <= MOST_IDLE, "{remembered}");
        assert!(leases.of(held).is_some());
    }
}
