//! What the log says: the events of a lock's life, with the field names that people search for.
//!
//! A process of its own, because the subscriber is global: the engine logs from another thread.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::{LockManager, LockOptions};
use dblock_tests::Backend;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// An event: its message and its fields.
type Seen = BTreeMap<String, String>;

#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<Seen>>>);

struct Fields<'a>(&'a mut Seen);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl<S: Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut seen = Seen::new();
        event.record(&mut Fields(&mut seen));
        self.0.lock().unwrap().push(seen);
    }
}

impl Events {
    /// The first event about `key` with this message; it must have these fields.
    fn expect(&self, key: &str, message: &str, fields: &[&str]) -> Seen {
        let events = self.0.lock().unwrap();
        let about = |seen: &&Seen| seen.get("key").is_some_and(|found| found == key);
        let found = events
            .iter()
            .filter(about)
            .find(|seen| seen["message"].starts_with(message));
        let seen = found.unwrap_or_else(|| panic!("no {message:?} about {key:?} in {events:#?}"));
        for field in fields {
            assert!(seen.contains_key(*field), "{field} is missing in {seen:?}");
        }
        seen.clone()
    }
}

#[tokio::test]
async fn a_locks_life_is_in_the_log() {
    let events = Events::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(events.clone())).unwrap();
    let backend = Backend::new(dblock_tests::Kind::Sqlite).await.unwrap();
    let (locks, other) = (backend.manager().await, backend.manager().await);

    nested(&locks, &other).await;
    let owner = events.expect("life", "lock acquired", &["fence_token", "waited"])["owner"].clone();
    assert_eq!(
        events.expect("life", "lock re-entered", &["fence_token", "waited"])["owner"],
        owner
    );
    assert_eq!(
        events.expect("life", "lock released", &["fence_token", "held"])["owner"],
        owner
    );
    events.expect("life", "lock busy", &["owner", "waited", "holder"]);

    let lost = locks
        .acquire("freed", LockOptions::new().ttl(Duration::from_secs(1)))
        .await
        .unwrap();
    other.force_release("freed").await.unwrap();
    lost.lost().await;
    events.expect("freed", "freeing a lock by force", &[]);
    events.expect("freed", "lock lost", &["owner", "fence_token", "held", "reason"]);

    backend.die_inside("left", Duration::from_secs(1)).await;
    let taken = locks
        .acquire("left", LockOptions::new().wait(Duration::from_secs(20)))
        .await
        .unwrap();
    let takeover = events.expect("left", "lock taken over", &["former_owner", "former_holder"]);
    assert_eq!(takeover["fence_token"], taken.fence_token().to_string());
}

async fn nested(locks: &LockManager, other: &LockManager) {
    let inner = async {
        locks.with("life", LockOptions::new(), async {}).await.unwrap();
        other.acquire("life", LockOptions::new()).await.unwrap_err();
    };
    locks.with("life", LockOptions::new(), inner).await.unwrap();
}
