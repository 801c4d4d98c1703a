//! The whole suite, on a real server.

use std::sync::Arc;

use dblock::LockRow;
use dblock::store::Store;
use dblock::store::clock::micros;
use dblock_conformance::Fixture;
use redis::Script;
use uuid::Uuid;

use super::RedisStore;
use super::script::{ROW, token};

/// Keys of their own on the server of `DBLOCK_TEST_REDIS_URL`.
struct Place {
    url: String,
    prefix: String,
}

impl Place {
    fn new() -> Option<Self> {
        let prefix = format!("suite_{}", Uuid::now_v7().simple());
        dblock_tests::redis_url().map(|url| Self { url, prefix })
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
        let placed = store.server.run(&script, |place| {
            place.arg(micros(store.idle));
            for row in rows {
                place.key(store.row_key(&row.key));
                place
                    .arg(row.lease_id.as_bytes())
                    .arg(row.owner.as_bytes())
                    .arg(row.reentrant_count)
                    .arg(row.expire_at)
                    .arg(token(row.fence_token))
                    .arg(token(row.fence_ceiling))
                    .arg(row.wanted_until)
                    .arg(row.acquired_at)
                    .arg(u8::from(row.revoked))
                    .arg(&row.holder);
                match &row.next {
                    Some(next) => place
                        .arg(next.lease_id.as_bytes())
                        .arg(next.owner.as_bytes())
                        .arg(&next.holder)
                        .arg(next.ttl)
                        .arg(next.spare_tokens)
                        .arg(next.since)
                        .arg(next.until),
                    None => place.arg(&[""; 7]),
                };
            }
        });
        placed.await.unwrap();
        true
    }
}

dblock_conformance::store_conformance!(Place::new());
