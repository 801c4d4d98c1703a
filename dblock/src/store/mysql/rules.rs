//! The table of rules on [`Store::apply`](crate::store::Store::apply) as a function of one row. No SQL.

use std::time::Duration;

use uuid::Uuid;

use crate::store::clock::{micros, until};
use crate::store::{Action, LockRow, Occupant, Outcome, Request};

/// What a request does to a row that nobody else can change meanwhile: the outcome, and the row as it is to
/// be written, if it changes.
pub(super) fn decide(request: &Request, row: &LockRow) -> (Outcome, Option<LockRow>) {
    let same = row.lease_id == request.lease_id;
    let ours = same && row.is_held();
    let now = row.now;
    let wanted = row.wanted_until > now;
    match &request.action {
        Action::Acquire { .. } if ours => {
            // The answer to the same request was lost; whether it took over an expired lease is forgotten.
            let remaining = until(row.expire_at, now);
            let granted = Outcome::Granted {
                fence_token: row.fence_token,
                remaining,
                taken_over: None,
                wanted,
            };
            (
                granted,
                (row.reentrant_count != 1).then(|| LockRow {
                    reentrant_count: 1,
                    ..row.clone()
                }),
            )
        }
        Action::Acquire { .. } if same => (Outcome::Lost, None),
        Action::Acquire { wanted_for, .. } if row.is_held() => {
            let wanted_until = wanted_for.and_then(|length| want(row.wanted_until, now, length));
            let change = wanted_until.map(|wanted_until| LockRow {
                wanted_until,
                ..row.clone()
            });
            (Outcome::Busy(occupant(row)), change)
        }
        Action::Acquire {
            owner, ttl, holder, ..
        } => {
            let fence_token = row.fence_ceiling.saturating_add(1).max(now);
            let taken_over = (row.reentrant_count > 0).then(|| occupant(row));
            let granted = Outcome::Granted {
                fence_token,
                remaining: *ttl,
                taken_over,
                wanted,
            };
            let change = LockRow {
                key: row.key.clone(),
                owner: *owner,
                reentrant_count: 1,
                expire_at: now.saturating_add(micros(*ttl)),
                lease_id: request.lease_id,
                fence_token,
                fence_ceiling: fence_token,
                wanted_until: row.wanted_until,
                acquired_at: now,
                holder: holder.to_string(),
                revoked: false,
                now,
            };
            (granted, Some(change))
        }
        Action::Extend { count, ttl, .. } if ours => {
            let longer = row.expire_at.max(now.saturating_add(micros(*ttl)));
            let expire_at = if row.revoked { row.expire_at } else { longer };
            let extended = Outcome::Extended {
                remaining: until(expire_at, now),
                revoked: row.revoked,
                wanted,
            };
            (
                extended,
                Some(LockRow {
                    reentrant_count: *count,
                    expire_at,
                    ..row.clone()
                }),
            )
        }
        Action::Release if ours => {
            let change = LockRow {
                reentrant_count: 0,
                ..row.clone()
            };
            (Outcome::Released { freed: true, wanted }, Some(change))
        }
        Action::Release if same && row.reentrant_count == 0 => {
            (Outcome::Released { freed: false, wanted }, None)
        }
        Action::Extend { .. } | Action::Release => (Outcome::Lost, None),
    }
}

/// What a request does to an absent row: the outcome, and the row that an acquire inserts.
pub(super) fn decide_absent(request: &Request, now: i64) -> (Outcome, Option<LockRow>) {
    // Like a free row whose lease is nobody's, and that never gave a token.
    let nothing = LockRow {
        key: request.key.clone(),
        owner: Uuid::nil(),
        reentrant_count: 0,
        expire_at: 0,
        lease_id: Uuid::nil(),
        fence_token: 0,
        fence_ceiling: 0,
        wanted_until: 0,
        acquired_at: 0,
        holder: String::new(),
        revoked: false,
        now,
    };
    match &request.action {
        Action::Acquire { .. } => decide(request, &nothing),
        Action::Extend { .. } | Action::Release => (Outcome::Lost, None),
    }
}

/// What can be said of a row that somebody else has locked, from its last committed state: an acquire
/// learns that the key is busy; everything else has to ask again.
pub(super) fn judge_locked(request: &Request, row: &LockRow) -> Outcome {
    let acquire = matches!(request.action, Action::Acquire { .. });
    if acquire && row.is_held() && row.lease_id != request.lease_id {
        Outcome::Busy(occupant(row))
    } else {
        Outcome::Skipped
    }
}

/// The `wanted_until` that says that somebody waits. The write is spared while at least half of the time is still ahead,
/// so that many waiters don't cost a commit each.
fn want(wanted_until: i64, now: i64, length: Duration) -> Option<i64> {
    let length = micros(length);
    let ahead = wanted_until.saturating_sub(now);
    (ahead < length / 2).then(|| now.saturating_add(length))
}

fn occupant(row: &LockRow) -> Occupant {
    Occupant {
        owner: row.owner,
        holder: row.holder.clone(),
        fence_token: row.fence_token,
        remaining: until(row.expire_at, row.now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    const NOW: i64 = 1_800_000_000_000_000;
    const SECOND: i64 = 1_000_000;

    fn row(lease_id: Uuid, reentrant_count: u32, expire_at: i64) -> LockRow {
        LockRow {
            key: Key::new(None, "k").unwrap(),
            owner: Uuid::now_v7(),
            reentrant_count,
            expire_at,
            lease_id,
            fence_token: 7,
            fence_ceiling: 9,
            wanted_until: 0,
            acquired_at: 1,
            holder: "h".into(),
            revoked: false,
            now: NOW,
        }
    }

    fn acquire(lease_id: Uuid, wanted_for: Option<Duration>) -> Request {
        let (owner, ttl) = (Uuid::now_v7(), Duration::from_secs(3));
        let action = Action::Acquire {
            owner,
            ttl,
            holder: "me".into(),
            wanted_for,
            spare_tokens: 0,
        };
        Request {
            key: Key::new(None, "k").unwrap(),
            lease_id,
            action,
        }
    }

    #[test]
    fn the_expiry_instant_itself_is_expired() {
        let (mine, other) = (Uuid::now_v7(), Uuid::now_v7());
        let request = acquire(mine, None);
        let (outcome, change) = decide(&request, &row(other, 1, NOW));
        assert!(
            matches!(
                outcome,
                Outcome::Granted {
                    taken_over: Some(_),
                    ..
                }
            ),
            "{outcome:?}"
        );
        assert_eq!(change.map(|row| row.lease_id), Some(mine));
        let extend = Request {
            action: Action::Extend {
                count: 1,
                ttl: Duration::from_secs(3),
                successor: None,
            },
            ..acquire(mine, None)
        };
        assert_eq!(decide(&extend, &row(mine, 1, NOW)), (Outcome::Lost, None));
        let release = Request {
            action: Action::Release,
            ..acquire(mine, None)
        };
        assert_eq!(decide(&release, &row(mine, 1, NOW)), (Outcome::Lost, None));
    }

    #[test]
    fn a_token_passes_the_ceiling_even_when_the_clock_fell_back() {
        let request = acquire(Uuid::now_v7(), None);
        let mut free = row(Uuid::now_v7(), 0, 0);
        free.fence_ceiling = NOW + SECOND;
        let (_, change) = decide(&request, &free);
        let row = change.unwrap();
        assert_eq!(
            (row.fence_token, row.fence_ceiling),
            (NOW + SECOND + 1, NOW + SECOND + 1)
        );
    }

    #[test]
    fn wanted_until_is_written_only_when_half_of_it_has_passed() {
        let request = acquire(Uuid::now_v7(), Some(Duration::from_secs(4)));
        let mut held = row(Uuid::now_v7(), 1, NOW + SECOND);
        for (ahead, written) in [
            (-SECOND, true),
            (SECOND, true),
            (2 * SECOND, false),
            (9 * SECOND, false),
        ] {
            held.wanted_until = NOW + ahead;
            let (outcome, change) = decide(&request, &held);
            assert!(matches!(outcome, Outcome::Busy(_)));
            assert_eq!(
                change.map(|row| row.wanted_until),
                written.then_some(NOW + 4 * SECOND),
                "{ahead}"
            );
        }
    }

    #[test]
    fn a_revoked_lease_is_counted_but_not_extended() {
        let mine = Uuid::now_v7();
        let extend = Request {
            action: Action::Extend {
                count: 2,
                ttl: Duration::from_secs(3),
                successor: None,
            },
            ..acquire(mine, None)
        };
        let mut held = row(mine, 1, NOW + SECOND);
        held.revoked = true;
        let (outcome, change) = decide(&extend, &held);
        assert!(matches!(outcome, Outcome::Extended { revoked: true, .. }));
        assert_eq!(
            change.map(|row| (row.reentrant_count, row.expire_at)),
            Some((2, NOW + SECOND))
        );
    }

    #[test]
    fn nothing_but_busy_is_said_of_a_locked_row() {
        let mine = Uuid::now_v7();
        let request = acquire(mine, None);
        assert!(matches!(
            judge_locked(&request, &row(Uuid::now_v7(), 1, NOW + 1)),
            Outcome::Busy(_)
        ));
        assert_eq!(judge_locked(&request, &row(mine, 1, NOW + 1)), Outcome::Skipped);
        assert_eq!(
            judge_locked(&request, &row(Uuid::now_v7(), 1, NOW)),
            Outcome::Skipped
        );
        assert_eq!(
            judge_locked(&request, &row(Uuid::now_v7(), 0, NOW + 1)),
            Outcome::Skipped
        );
        let release = Request {
            action: Action::Release,
            ..request
        };
        assert_eq!(
            judge_locked(&release, &row(Uuid::now_v7(), 1, NOW + 1)),
            Outcome::Skipped
        );
    }
}
