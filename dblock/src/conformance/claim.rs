//! What a reservation leads to: the claim of who has come in by it, its withdrawal, and the word that lets in.

use std::sync::Arc;

use super::Fixture;
use super::listen::listening;
use super::reservation::{SPARE, Scene, reservation_of, reserved};
use super::scene::{
    Asker, BRIEF, LONG, SHORT, assert_about, batch, changes_nothing, existing, granted, one, revoke, row,
    until_not_held, within,
};
use crate::store::{LockRow, Outcome, Request, Store, Successor, WakeUp};

/// The row after a claim of `scene`: the lease holds it like after a grant.
async fn claimed(store: &dyn Store, scene: &Scene, request: Request, before: LockRow, batched: bool) {
    let crate::store::Action::Extend {
        successor: Some(successor),
        ..
    } = &request.action
    else {
        panic!("{request:?} claims nothing")
    };
    let mut requests = vec![request.clone()];
    if batched {
        requests.push(Asker::new("beside").extend(1, LONG));
    }
    let outcome = batch(store, &requests).await.remove(0);
    let Outcome::Extended {
        remaining,
        revoked: false,
        wanted: true,
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_about(remaining, LONG);
    let row = existing(store, &scene.next.key).await;
    assert_about(super::scene::left(&row), LONG);
    assert!(row.acquired_at >= before.now && row.acquired_at <= row.now);
    let written = LockRow {
        owner: successor.owner,
        holder: successor.holder.to_string(),
        lease_id: scene.next.lease_id,
        reentrant_count: 1,
        fence_token: successor.fence_token,
        revoked: false,
        reserved: None,
        expire_at: row.expire_at,
        acquired_at: row.acquired_at,
        now: row.now,
        ..before
    };
    assert_eq!(row, written);
    // The answer was lost.
    let again = one(store, request).await;
    assert!(matches!(again, Outcome::Extended { .. }), "{again:?}");
}

/// An extend with a successor, by the lease that is next: it holds the row from then on, though the former holder
/// has not released it yet, who finds it lost. Revoked it is no more.
pub async fn claim_takes_the_reserved_row(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    for (name, batched) in [("claimed", false), ("claimed in a batch", true)] {
        let Some(scene) = reserved(&*store, name, LONG, LONG).await else {
            return;
        };
        assert!(revoke(&*store, &scene.holder.key).await);
        let before = existing(&*store, &scene.holder.key).await;
        // By the handle that waited, and by one that knows nothing of the key.
        let handle = if batched { &other } else { &store };
        claimed(&**handle, &scene, scene.claim(), before, batched).await;
        for late in [scene.holder.release(), scene.holder.extend(1, LONG)] {
            assert_eq!(changes_nothing(&*store, late).await, Outcome::Lost);
        }
        assert_eq!(
            one(&*other, scene.next.release()).await,
            Outcome::Released {
                freed: true,
                wanted: true
            }
        );
    }
}

/// The same when the former holder's release came first, or its lease has ended. A later successor's token may be
/// any of the spare ones.
pub async fn claim_of_a_free_or_expired_row_takes_it(fixture: &impl Fixture) {
    let store = fixture.store().await;
    for (name, ttl) in [("free", LONG), ("expired", BRIEF)] {
        let Some(scene) = reserved(&*store, name, ttl, LONG).await else {
            return;
        };
        if ttl == LONG {
            one(&*store, scene.holder.release()).await;
        } else {
            until_not_held(&*store, &scene.holder.key).await;
        }
        let before = existing(&*store, &scene.holder.key).await;
        let later = Successor {
            fence_token: scene.reservation.fence_token + i64::from(SPARE),
            ..scene.successor()
        };
        let claim = scene.next.hand_over(1, LONG, Some(later));
        claimed(&*store, &scene, claim, before, false).await;
    }
}

/// A lease that is shorter than what is left of the reservation: who came in by that counts on it.
pub async fn claim_shortens_nothing_that_was_promised(fixture: &impl Fixture) {
    let store = fixture.store().await;
    let Some(scene) = reserved(&*store, "promised", LONG, LONG).await else {
        return;
    };
    let promised = existing(&*store, &scene.holder.key).await.reserved;
    let claim = scene.next.hand_over(1, SHORT, Some(scene.successor()));
    let outcome = one(&*store, claim).await;
    assert!(
        matches!(outcome, Outcome::Extended { remaining, .. } if remaining > SHORT),
        "{outcome:?}"
    );
    let row = existing(&*store, &scene.holder.key).await;
    assert_eq!(Some(row.expire_at), promised.map(|promised| promised.until));
}

/// A claim by anybody else, or without a successor: lost, and nothing is written.
pub async fn claim_without_a_reservation_is_lost(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let Some(scene) = reserved(&*store, "unclaimed", LONG, LONG).await else {
        return;
    };
    let stranger = Asker::new("unclaimed");
    let older = Successor {
        fence_token: scene.reservation.fence_token - 1,
        ..scene.successor()
    };
    let lost = async || {
        for request in [
            stranger.hand_over(1, LONG, Some(scene.successor())),
            stranger.release(),
            scene.next.extend(1, LONG),
            // A token that was given before the reservation.
            scene.next.hand_over(1, LONG, Some(older.clone())),
        ] {
            // By a handle that has seen the key busy, and by one that has not.
            for handle in [&store, &other] {
                let answer = changes_nothing(&**handle, request.clone()).await;
                assert_eq!(answer, Outcome::Lost, "{request:?}");
            }
        }
    };
    lost().await;
    one(&*store, scene.holder.release()).await;
    lost().await;
    // After the lease of the reservation has come in and gone.
    one(&*store, scene.claim()).await;
    one(&*store, scene.next.release()).await;
    assert_eq!(changes_nothing(&*other, scene.claim()).await, Outcome::Lost);
    let absent = Asker::new("absent");
    let claim = absent.hand_over(1, LONG, Some(scene.successor()));
    assert_eq!(one(&*store, claim).await, Outcome::Lost);
    assert_eq!(row(&*store, &absent.key).await, None);
}

/// A release by the lease that is next: it is no longer, whoever holds the row goes on, and the key is open again.
pub async fn withdrawal_ends_the_reservation(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    for released in [false, true] {
        let name = format!("withdrawn {released}");
        let Some(scene) = reserved(&*store, &name, LONG, LONG).await else {
            return;
        };
        if released {
            one(&*store, scene.holder.release()).await;
        }
        let before = existing(&*store, &scene.holder.key).await;
        assert_eq!(one(&*other, scene.next.release()).await, Outcome::Withdrawn);
        let now = before.now;
        let after = LockRow {
            now,
            ..existing(&*store, &scene.holder.key).await
        };
        assert_eq!(
            after,
            LockRow {
                reserved: None,
                ..before
            }
        );
        assert_eq!(
            changes_nothing(&*other, scene.next.release()).await,
            Outcome::Lost
        );
        assert_eq!(changes_nothing(&*other, scene.claim()).await, Outcome::Lost);
        let third = Asker::new(&name);
        if !released {
            let answer = one(&*other, third.acquire_reserving(LONG, SPARE)).await;
            let (_, of_third) = reservation_of(answer);
            assert!(of_third.fence_token > scene.reservation.fence_token + i64::from(SPARE));
            one(&*store, scene.holder.release()).await;
        }
        granted(&*other, third.acquire(LONG)).await;
    }
}

/// Announced is what is held by the lease, and reserved; the rest is answered with no. No row changes. Who listens
/// hears which lease has left which key.
pub async fn leaves_of_reserved_keys_are_announced(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    if reserved(&*store, "probe", LONG, LONG).await.is_none() {
        return;
    }
    assert_eq!(store.announce(&[]).await.expect("announce works"), [false; 0]);
    let can_listen = store.capabilities().wake_ups && fixture.hears();
    let mut listener = if can_listen {
        Some(listening(Arc::clone(&other)).await)
    } else {
        None
    };
    let mut scenes = Vec::new();
    for name in ["b", "a", "freed", "é 'quoted' l\\"] {
        let scene = reserved(&*store, name, LONG, LONG).await;
        scenes.push(scene.expect("the store keeps reservations"));
    }
    let free = scenes.remove(2);
    one(&*store, free.holder.release()).await;
    let unreserved = Asker::new("unreserved");
    granted(&*store, unreserved.acquire(LONG)).await;
    let leaves = [
        scenes[0].holder.leave(),
        free.holder.leave(),
        scenes[1].holder.leave(),
        Asker::new("absent").leave(),
        unreserved.leave(),
        scenes[2].holder.leave(),
    ];
    let mut before = Vec::new();
    for leave in &leaves {
        before.push(row(&*store, &leave.key).await);
    }
    let announced = store.announce(&leaves).await.expect("announce works");
    if !store.capabilities().wake_ups {
        assert_eq!(announced, [false; 6], "nobody can be told");
        return;
    }
    assert_eq!(announced, [true, false, true, false, false, true]);
    // By a stranger, and by the lease that is next.
    for (lease, is_told) in [
        (&Asker::new("b"), false),
        (&scenes[0].next, false),
        (&scenes[0].holder, true),
    ] {
        let announced = other.announce(&[lease.leave()]).await;
        assert_eq!(announced.expect("announce works"), [is_told]);
    }
    for (leave, before) in leaves.iter().zip(before) {
        let now = before.as_ref().map_or(0, |row| row.now);
        let after = row(&*store, &leave.key).await.map(|row| LockRow { now, ..row });
        assert_eq!(after, before, "announcing writes nothing");
    }
    let Some((wake_ups, task)) = &mut listener else {
        return;
    };
    let mut heard: Vec<WakeUp> = Vec::new();
    within("the leaves to be told", async {
        while heard.len() < 4 {
            match wake_ups.recv().await.expect("it goes on listening") {
                left @ WakeUp::Left(..) => heard.push(left),
                WakeUp::Released(key) => assert_eq!(key, free.holder.key),
                WakeUp::Listening => {}
            }
        }
    })
    .await;
    let left = |scene: &Scene| WakeUp::Left(scene.holder.key.clone(), scene.holder.leave().word);
    assert_eq!(heard.pop(), Some(left(&scenes[0])));
    for scene in &scenes {
        assert!(heard.contains(&left(scene)), "{heard:?}");
    }
    task.abort();
}
