//! The whole suite, on a real server.

use std::sync::Arc;
use std::time::Duration;

use dblock_conformance::Fixture;
use dblock_core::store::clock::micros;
use dblock_core::store::{Acquire, Action, Request, Store};
use dblock_core::{InspectFilter, Key, LockRow};
use redis::Script;
use uuid::Uuid;

use super::RedisStore;
use super::admin::STEP;
use super::call::Call;
use super::script::{ROW, token};

/// Keys of their own on the servers of `DBLOCK_TEST_REDIS_URL`, `DBLOCK_TEST_REDIS_CLUSTER_URL` and
/// `DBLOCK_TEST_REDIS_SENTINEL_URL`.
struct Place {
    url: String,
    prefix: String,
}

impl Place {
    fn new(url: Option<String>) -> Option<Self> {
        let prefix = format!("suite_{}", Uuid::now_v7().simple());
        url.map(|url| Self { url, prefix })
    }

    fn open(&self) -> RedisStore {
        RedisStore::new(&self.url).unwrap().prefix(&self.prefix)
    }
}

impl Fixture for Place {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.open())
    }

    async fn place(&self, rows: &[LockRow]) -> bool {
        if rows.is_empty() {
            return true;
        }
        let store = self.open();
        let script = Script::new(&format!("{ROW}{}", include_str!("lua/place.lua")));
        for row in rows {
            let mut place = Call::of(&script);
            place
                .key(store.row_key(row.key.as_ref()))
                .arg(micros(store.idle))
                .arg(row.lease_id.as_bytes())
                .arg(row.owner.as_bytes())
                .arg(row.reentrant_count)
                .arg(row.expire_at.as_micros())
                .arg(token(row.fence_token))
                .arg(token(row.fence_ceiling))
                .arg(row.wanted_until.as_micros())
                .arg(row.acquired_at.as_micros())
                .arg(u8::from(row.revoked))
                .arg(&row.holder);
            match &row.next {
                Some(next) => place
                    .arg(next.lease_id.as_bytes())
                    .arg(next.owner.as_bytes())
                    .arg(&next.holder)
                    .arg(micros(next.ttl))
                    .arg(next.spare_tokens)
                    .arg(next.since.as_micros())
                    .arg(next.until.as_micros())
                    .arg(next.limit.unwrap_or(0)),
                None => place.arg(&[""; 8]),
            };
            place.arg(row.shared.len());
            for hold in &row.shared {
                place
                    .arg(hold.lease_id.as_bytes())
                    .arg(&hold.holder)
                    .arg(hold.count)
                    .arg(hold.number)
                    .arg(hold.expire_at.as_micros());
            }
            store.deployment.run(&place).await.unwrap();
        }
        true
    }
}

#[test]
fn a_row_stays_for_a_week() {
    let store = RedisStore::new("redis://127.0.0.1").unwrap();
    assert_eq!(store.idle, Duration::from_hours(168));
}

#[tokio::test]
async fn a_look_goes_on_behind_its_first_step() {
    let Some(place) = Place::new(dblock_tests::redis_url()) else {
        return;
    };
    let store = place.open();
    let acquire = |n: usize| {
        let ask = Acquire::new(Uuid::now_v7(), Duration::from_secs(30), "test");
        let key = Key::new(None, &n.to_string()).unwrap();
        Request::new(key, Uuid::now_v7(), Action::Acquire(ask))
    };
    store.apply(&(0..=STEP).map(acquire).collect::<Vec<_>>()).await;
    let rows = store.inspect(&InspectFilter::new().limit(1_000)).await.unwrap();
    assert_eq!(rows.len(), STEP + 1);
}

mod one_server {
    use super::Place;

    dblock_tests::conformance!(Place::new(dblock_tests::redis_url()));
}

mod cluster {
    use super::Place;

    dblock_tests::conformance!(Place::new(dblock_tests::redis_cluster_url()));
}

mod sentinel {
    use super::Place;

    // What a manager makes of the answers does not depend on the way to the server.
    dblock_tests::dblock_conformance::store_conformance!(Place::new(dblock_tests::redis_sentinel_url()));
}
