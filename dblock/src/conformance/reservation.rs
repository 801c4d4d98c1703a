//! Reservations: a lease that waits has the next grant. A store that keeps none answers that the key is busy, and
//! grants it to anybody.

use std::time::Duration;

use uuid::Uuid;

use super::Fixture;
use super::scene::{
    Asker, BRIEF, LONG, ROUNDS, SHORT, assert_about, batch, changes_nothing, existing, force_release,
    granted, one, until, until_not_held,
};
use crate::store::{LockRow, Occupant, Outcome, Request, Reservation, Reserved, Store, Successor};

pub(super) const SPARE: u32 = 50;

/// A key that one lease holds, and that is reserved for another.
pub(super) struct Scene {
    pub(super) holder: Asker,
    pub(super) next: Asker,
    pub(super) reservation: Reservation,
}

impl Scene {
    pub(super) fn successor(&self) -> Successor {
        Successor {
            owner: Uuid::now_v7(),
            holder: "host/2 who claims".into(),
            fence_token: self.reservation.fence_token,
        }
    }

    /// The request by which the next one has it written that it is inside.
    pub(super) fn claim(&self) -> Request {
        self.next.hand_over(1, LONG, Some(self.successor()))
    }
}

/// Holds `name` for `ttl`, and has it reserved for `wanted_for`. `None` where the store keeps no reservations, which
/// this shows: the request that asks for one is a plain busy one, and the key is the first one's that asks later.
pub(super) async fn reserved(
    store: &dyn Store,
    name: &str,
    ttl: Duration,
    wanted_for: Duration,
) -> Option<Scene> {
    for _ in 0..ROUNDS {
        let (holder, next) = (Asker::new(name), Asker::new(name));
        granted(store, holder.acquire_with_spare(ttl, 2 * SPARE)).await;
        match one(store, next.acquire_reserving(wanted_for, SPARE)).await {
            Outcome::Reserved(_, reservation) => {
                return Some(Scene {
                    holder,
                    next,
                    reservation,
                });
            }
            Outcome::Busy(occupant) => {
                assert!(holder.is(&occupant), "{occupant:?}");
                assert_eq!(existing(store, &holder.key).await.reserved, None);
                let told = store.announce(&[holder.leave()]).await;
                assert_eq!(told.expect("announce works"), [false]);
                assert_eq!(one(store, next.release()).await, Outcome::Lost);
                one(store, holder.release()).await;
                granted(store, Asker::new(name).acquire(LONG)).await;
                return None;
            }
            // Too late.
            Outcome::Granted { .. } if ttl == BRIEF => drop(one(store, next.release()).await),
            other => panic!("{other:?}"),
        }
    }
    panic!("nobody reserves behind a lease of {ttl:?}");
}

pub(super) fn reservation_of(outcome: Outcome) -> (Occupant, Reservation) {
    match outcome {
        Outcome::Reserved(occupant, reservation) => (occupant, reservation),
        other => panic!("{other:?}"),
    }
}

pub(super) fn occupant_of(outcome: Outcome) -> Occupant {
    match outcome {
        Outcome::Busy(occupant) => occupant,
        other => panic!("{other:?}"),
    }
}

pub(super) fn reserved_in(row: &LockRow) -> Reserved {
    row.reserved.expect("the row is reserved")
}

/// The answer says behind whom, with which token and for how long; the row has it, and the holder's part of it stays.
pub async fn busy_acquire_reserves_the_next_grant(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    if reserved(&*store, "probe", LONG, LONG).await.is_none() {
        return;
    }
    let (holder, next) = (Asker::new("next"), Asker::new("next"));
    granted(&*store, holder.acquire_with_spare(LONG, 2 * SPARE)).await;
    let before = existing(&*store, &holder.key).await;
    let answer = one(&*other, next.acquire_reserving(LONG, SPARE)).await;
    let (occupant, reservation) = reservation_of(answer);
    assert!(holder.is(&occupant), "{occupant:?}");
    assert_eq!(occupant.fence_token, before.fence_token);
    assert_about(occupant.remaining, LONG);
    assert_eq!(reservation.behind, holder.lease_id);
    assert!(
        reservation.fence_token > before.fence_ceiling,
        "above every spare token"
    );
    assert_eq!(reservation.spare_tokens, SPARE);
    assert_about(reservation.remaining, LONG);

    let after = existing(&*store, &holder.key).await;
    let written = reserved_in(&after);
    assert_eq!(
        (written.lease_id, written.fence_token),
        (next.lease_id, reservation.fence_token)
    );
    assert!(written.until > after.now);
    assert!(after.wanted_until > after.now, "who reserves waits, too");
    assert_eq!(after.fence_ceiling, reservation.fence_token + i64::from(SPARE));
    let apart_from_it = LockRow {
        fence_ceiling: before.fence_ceiling,
        wanted_until: before.wanted_until,
        reserved: None,
        now: before.now,
        ..after
    };
    assert_eq!(apart_from_it, before);

    // Without a time there is nothing to reserve for.
    let (holder, next) = (Asker::new("timeless"), Asker::new("timeless"));
    granted(&*store, holder.acquire(LONG)).await;
    let mut request = next.acquire_reserving(LONG, SPARE);
    if let crate::store::Action::Acquire { wanted_for, .. } = &mut request.action {
        *wanted_for = None;
    }
    occupant_of(changes_nothing(&*other, request).await);
}

/// Asked again: the same token and as many spare ones, and no write while half of it is ahead. Another lease finds
/// the key busy, and leaves the reservation alone.
pub async fn reservation_is_kept_and_not_written_with_each_request(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let Some(scene) = reserved(&*store, "kept", LONG, LONG).await else {
        return;
    };
    let next = &scene.next;
    // Also without asking for it.
    for request in [
        next.acquire_reserving(LONG, SPARE),
        next.acquire_reserving(LONG, 3 * SPARE),
        next.acquire_reserving(LONG / 2, 0),
        next.acquire(LONG),
    ] {
        let (_, again) = reservation_of(changes_nothing(&*other, request).await);
        let remaining = again.remaining;
        assert_eq!(
            Reservation {
                remaining: scene.reservation.remaining,
                ..again
            },
            scene.reservation
        );
        assert_about(remaining, LONG);
    }
    let third = Asker::new("kept");
    let before = existing(&*store, &third.key).await;
    for request in [
        third.acquire_reserving(3 * LONG, SPARE),
        third.acquire_reserving(LONG, SPARE),
    ] {
        let occupant = occupant_of(one(&*other, request).await);
        assert!(scene.holder.is(&occupant), "{occupant:?}");
        assert_about(occupant.remaining, LONG);
        let after = existing(&*store, &third.key).await;
        assert_eq!(after.reserved, before.reserved);
        assert_eq!(after.fence_ceiling, before.fence_ceiling);
    }
    // Much longer.
    let (_, longer) = reservation_of(one(&*other, next.acquire_reserving(3 * LONG, 3 * SPARE)).await);
    assert_about(longer.remaining, 3 * LONG);
    assert!(longer.remaining > LONG, "{longer:?}");
    assert_eq!(
        (longer.fence_token, longer.spare_tokens),
        (scene.reservation.fence_token, SPARE)
    );
    let after = existing(&*store, &third.key).await;
    assert_eq!(after.fence_ceiling, before.fence_ceiling);
}

/// After the release: everybody else finds the key busy for as long as it is reserved, alone and in a batch, and
/// cannot reserve it either.
pub async fn reserved_key_is_granted_to_nobody_else(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let Some(scene) = reserved(&*store, "reserved", LONG, 2 * LONG).await else {
        return;
    };
    let answer = one(&*store, scene.holder.release()).await;
    assert_eq!(
        answer,
        Outcome::Released {
            freed: true,
            wanted: true
        }
    );
    let before = existing(&*store, &scene.holder.key).await;
    assert_eq!(before.reentrant_count, 0);
    // Handles that have not seen the key busy and then have: first alone, first beside another key.
    for alone_first in [true, false] {
        let handle = fixture.store().await;
        let stranger = Asker::new("reserved");
        for alone in [alone_first, !alone_first] {
            let mut requests = vec![stranger.acquire(LONG)];
            requests.extend((!alone).then(|| Asker::new("beside").acquire(LONG)));
            let answer = batch(&*handle, &requests).await.swap_remove(0);
            let reserving = changes_nothing(&*handle, stranger.acquire_reserving(LONG, SPARE)).await;
            for answer in [answer, reserving] {
                let occupant = occupant_of(answer);
                assert!(scene.holder.is(&occupant), "the last one that was inside");
                assert_about(occupant.remaining, 2 * LONG);
                assert!(occupant.remaining > LONG, "that of the reservation");
            }
        }
    }
    let stranger = Asker::new("reserved");
    occupant_of(one(&*other, stranger.acquire_wanting(8 * LONG)).await);
    let after = existing(&*store, &scene.holder.key).await;
    assert!(after.wanted_until > before.wanted_until, "it waits nevertheless");
    let apart_from_it = LockRow {
        wanted_until: before.wanted_until,
        now: before.now,
        ..after
    };
    assert_eq!(apart_from_it, before);
    // The lease that was released is over for good.
    assert_eq!(
        changes_nothing(&*other, scene.holder.acquire(LONG)).await,
        Outcome::Lost
    );
    granted(&*other, scene.next.acquire(LONG)).await;
}

/// Whoever comes in by asking has the token that was promised, and the reservation is over.
pub async fn reserved_grant_has_the_reserved_token(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    for (name, spare) in [("fewer", 0), ("as many", SPARE), ("more", 2 * SPARE)] {
        let Some(scene) = reserved(&*store, name, LONG, LONG).await else {
            return;
        };
        one(&*store, scene.holder.release()).await;
        let grant = granted(&*other, scene.next.acquire_with_spare(LONG, spare)).await;
        assert_eq!(grant.fence_token, scene.reservation.fence_token);
        assert!(grant.wanted && grant.taken_over.is_none());
        let row = existing(&*store, &scene.next.key).await;
        assert_eq!(row.reserved, None);
        assert_eq!((row.lease_id, row.owner), (scene.next.lease_id, scene.next.owner));
        assert_eq!(row.fence_ceiling, grant.fence_token + i64::from(spare.max(SPARE)));
        one(&*other, scene.next.release()).await;
        let later = granted(&*store, Asker::new(name).acquire(LONG)).await;
        assert!(later.fence_token > row.fence_ceiling);
    }
}

/// When its time is over a reservation keeps nobody out; its token is given to nobody else.
pub async fn reservation_runs_out(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let lapses = async |name: &str| {
        let scene = reserved(&*store, name, LONG, SHORT).await?;
        until(&*store, &scene.next.key, "the reservation to lapse", |row| {
            reserved_in(row).until <= row.now
        })
        .await;
        Some(scene)
    };
    let Some(free) = lapses("free").await else {
        return;
    };
    one(&*store, free.holder.release()).await;
    for late in [free.next.release(), free.claim()] {
        assert_eq!(changes_nothing(&*other, late).await, Outcome::Lost);
    }
    let ceiling = free.reservation.fence_token + i64::from(SPARE);
    let grant = granted(&*other, Asker::new("free").acquire(LONG)).await;
    assert!(grant.fence_token > ceiling);

    let held = lapses("held").await.expect("the store keeps reservations");
    let told = store.announce(&[held.holder.leave()]).await;
    assert_eq!(told.expect("announce works"), [false]);
    let third = Asker::new("held");
    let (_, of_third) = reservation_of(one(&*other, third.acquire_reserving(LONG, SPARE)).await);
    assert!(of_third.fence_token > held.reservation.fence_token + i64::from(SPARE));
    occupant_of(one(&*other, held.next.acquire_reserving(LONG, SPARE)).await);

    // Too late, who was next comes in like anybody.
    let late = lapses("late").await.expect("the store keeps reservations");
    one(&*store, late.holder.release()).await;
    let grant = granted(&*other, late.next.acquire(LONG)).await;
    assert!(grant.fence_token > late.reservation.fence_token + i64::from(SPARE));
}

/// A holder that died: only who has the reservation takes over, and is told from whom.
pub async fn expired_row_goes_to_whom_it_is_reserved_for(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let Some(scene) = reserved(&*store, "expired", BRIEF, LONG).await else {
        return;
    };
    until_not_held(&*store, &scene.holder.key).await;
    let told = store.announce(&[scene.holder.leave()]).await;
    assert_eq!(told.expect("announce works"), [false]);
    let occupant = occupant_of(changes_nothing(&*other, Asker::new("expired").acquire(LONG)).await);
    assert!(scene.holder.is(&occupant), "{occupant:?}");
    assert_about(occupant.remaining, LONG);
    assert!(occupant.remaining > BRIEF, "that of the reservation");

    let grant = granted(&*other, scene.next.acquire(LONG)).await;
    assert_eq!(grant.fence_token, scene.reservation.fence_token);
    let former = grant.taken_over.expect("the former holder is named");
    assert!(scene.holder.is(&former), "{former:?}");
    assert_eq!(existing(&*store, &scene.next.key).await.reserved, None);
}

/// Each state of a row in one batch of acquires, one of extends and one of releases.
pub async fn reservations_in_a_batch_answer_each_request(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    if reserved(&*store, "probe", LONG, LONG).await.is_none() {
        return;
    }
    let mut scenes = Vec::new();
    for name in ["mine", "theirs", "free for me", "free for them"] {
        let scene = reserved(&*store, name, LONG, LONG).await;
        scenes.push(scene.expect("the store keeps reservations"));
    }
    let [mine, theirs, free_mine, free_theirs] = &scenes[..] else {
        unreachable!()
    };
    for freed in [free_mine, free_theirs] {
        one(&*store, freed.holder.release()).await;
    }
    let held = Asker::new("held");
    granted(&*store, held.acquire(LONG)).await;
    let plain = Asker::new("held");
    let acquires = [
        Asker::new("free for them").acquire_reserving(LONG, SPARE),
        mine.next.acquire_reserving(LONG, SPARE),
        Asker::new("fresh").acquire_reserving(LONG, SPARE),
        free_mine.next.acquire_reserving(LONG, SPARE),
        plain.acquire_wanting(LONG),
        Asker::new("theirs").acquire_reserving(LONG, SPARE),
    ];
    let answers = batch(&*other, &acquires).await;
    assert!(
        matches!(
            &answers[..],
            [
                Outcome::Busy(first),
                Outcome::Reserved(_, second),
                Outcome::Granted { .. },
                Outcome::Granted { fence_token, .. },
                Outcome::Busy(fifth),
                Outcome::Busy(sixth),
            ] if free_theirs.holder.is(first) && second.behind == mine.holder.lease_id
                && *fence_token == free_mine.reservation.fence_token
                && held.is(fifth) && theirs.holder.is(sixth)
        ),
        "{answers:?}"
    );
    assert_eq!(
        existing(&*store, &held.key).await.reserved,
        None,
        "it did not ask"
    );

    let extends = [
        theirs.holder.extend(2, LONG),
        free_theirs.claim(),
        mine.holder.hand_over(
            1,
            LONG,
            Some(Successor {
                fence_token: 0,
                ..mine.successor()
            }),
        ),
        free_theirs.holder.extend(1, LONG),
    ];
    let answers = batch(&*other, &extends[..3]).await;
    let extended = answers
        .iter()
        .all(|answer| matches!(answer, Outcome::Extended { .. }));
    assert!(extended, "{answers:?}");
    assert_eq!(one(&*store, extends[3].clone()).await, Outcome::Lost);
    let row = existing(&*store, &theirs.holder.key).await;
    assert_eq!(row.reentrant_count, 2);
    assert_eq!(
        reserved_in(&row).lease_id,
        theirs.next.lease_id,
        "an extend leaves it"
    );

    let releases = [
        theirs.next.release(),
        mine.holder.release(),
        free_mine.holder.release(),
        free_theirs.next.release(),
    ];
    let freed = Outcome::Released {
        freed: true,
        wanted: true,
    };
    assert_eq!(
        batch(&*other, &releases).await,
        [Outcome::Withdrawn, freed.clone(), Outcome::Lost, freed]
    );
    let row = existing(&*store, &theirs.holder.key).await;
    assert_eq!((row.reentrant_count, row.reserved), (2, None));
    let row = existing(&*store, &mine.holder.key).await;
    assert_eq!(
        reserved_in(&row).lease_id,
        mine.next.lease_id,
        "a release leaves it"
    );
}

/// Who waits next is next, too, when an operator frees the key.
pub async fn force_release_leaves_the_reservation(fixture: &impl Fixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let Some(scene) = reserved(&*store, "forced", LONG, LONG).await else {
        return;
    };
    let before = existing(&*store, &scene.holder.key).await.reserved;
    assert!(force_release(&*store, &scene.holder.key).await);
    assert_eq!(existing(&*store, &scene.holder.key).await.reserved, before);
    let told = store.announce(&[scene.holder.leave()]).await;
    assert_eq!(told.expect("announce works"), [false], "the lease is gone");
    occupant_of(one(&*other, Asker::new("forced").acquire(LONG)).await);
    let grant = granted(&*other, scene.next.acquire(LONG)).await;
    assert_eq!(grant.fence_token, scene.reservation.fence_token);
}
