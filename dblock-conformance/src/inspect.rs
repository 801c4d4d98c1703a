//! Reading rows, the clock, the tables and the capabilities.

use std::time::{Duration, SystemTime};

use dblock_core::store::Store;
use dblock_core::store::clock::Timestamp;
use dblock_core::{InspectFilter, LockRow};

use super::AnyFixture;
use super::context::{
    Asker, LONG, SHORT, batch, existing, granted, granted_briefly, one, until, until_not_held,
};

async fn hold(store: &dyn Store, keys: &[&str]) {
    let requests: Vec<_> = keys.iter().map(|key| Asker::new(key).acquire(LONG)).collect();
    batch(store, &requests).await;
}

async fn keys(store: &dyn Store, filter: InspectFilter) -> Vec<String> {
    let rows = store.inspect(&filter).await.expect("inspect reads rows");
    rows.iter().map(|row| row.key.as_str().to_owned()).collect()
}

/// Characters of a prefix are no wildcards, and case and accents count.
pub async fn inspect_compares_the_prefix_byte_by_byte(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    hold(
        &*store,
        &[
            "ab", "abc", "Abc", "ab%", "a_c", "a%", "a*", "a[", "b", "äb", "a\\b", "a'b", "é", "e\u{301}",
        ],
    )
    .await;
    let with = |prefix: &str| keys(&*store, InspectFilter::new().prefix(prefix));
    assert_eq!(with("ab").await, ["ab", "ab%", "abc"]);
    assert_eq!(with("A").await, ["Abc"]);
    assert_eq!(with("a%").await, ["a%"]);
    assert_eq!(with("a_").await, ["a_c"]);
    assert_eq!(with("a*").await, ["a*"]);
    assert_eq!(with("a[").await, ["a["]);
    assert_eq!(with("a\\").await, ["a\\b"]);
    assert_eq!(with("a'").await, ["a'b"]);
    assert_eq!(with("ä").await, ["äb"]);
    assert_eq!(with("é").await, ["é"]);
    assert_eq!(with("e").await, ["e\u{301}"]);
    assert_eq!(with("ab ").await, [""; 0]);
    assert_eq!(with("abcd").await, [""; 0]);
    assert_eq!(with("").await.len(), 14);
}

/// Free and expired rows are returned only on request, and only where rows outlive their leases.
pub async fn inspect_leaves_free_rows_out(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let (held, free, mut expired) = (Asker::new("held"), Asker::new("free"), Asker::new("expired"));
    granted(&*store, held.acquire(LONG)).await;
    granted(&*store, free.acquire(LONG)).await;
    one(&*store, free.release()).await;
    granted_briefly(&*store, &mut expired, SHORT, 0).await;
    until_not_held(&*store, &expired.key).await;
    assert_eq!(keys(&*store, InspectFilter::new()).await, ["held"]);
    let (all, free): (&[_], &[_]) = if store.capabilities().former_leases {
        (&["expired", "free", "held"], &["free"])
    } else {
        (&["held"], &[])
    };
    assert_eq!(keys(&*store, InspectFilter::new().include_free()).await, all);
    assert_eq!(
        keys(&*store, InspectFilter::new().include_free().prefix("f")).await,
        free
    );
}

/// Rows come in the byte order of their keys, up to the limit.
pub async fn inspect_orders_and_limits(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    hold(
        &*store,
        &["b", "a", "B", "a ", "ä", "Z", "z", "\u{1f512}", "\u{ffff}", "_"],
    )
    .await;
    let ordered = ["B", "Z", "_", "a", "a ", "b", "z", "ä", "\u{ffff}", "\u{1f512}"];
    assert_eq!(keys(&*store, InspectFilter::new()).await, ordered);
    assert_eq!(keys(&*store, InspectFilter::new().limit(3)).await, ordered[..3]);
    assert_eq!(keys(&*store, InspectFilter::new().limit(0)).await, [""; 0]);
    assert_eq!(
        keys(&*store, InspectFilter::new().prefix("a").limit(1)).await,
        ["a"]
    );
}

/// A lock with waiters comes first, then the longest held. Pages of any size have every row once.
pub async fn inspect_shows_the_urgent_first_and_in_pages(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    // Granted one after the other, and not in the order of their keys.
    for name in ["d", "c", "b", "a", "free", "out"] {
        granted(&*store, Asker::new(name).acquire(LONG)).await;
    }
    let free = Asker::new("f");
    granted(&*store, free.acquire(LONG)).await;
    one(&*store, free.release()).await;
    let mut expired = Asker::new("e");
    granted_briefly(&*store, &mut expired, SHORT, 0).await;
    until_not_held(&*store, &expired.key).await;
    one(&*store, Asker::new("a").acquire_wanting(LONG)).await;
    one(&*store, Asker::new("b").queue(Duration::ZERO)).await;
    // In stores whose rows end by themselves a wish ends after some seconds.
    one(&*store, Asker::new("b").acquire_wanting(LONG)).await;

    let mut rows = store
        .inspect(&InspectFilter::new().include_free())
        .await
        .expect("inspect reads rows");
    // A clock may read the same for several of them.
    rows.sort_by_key(LockRow::position);
    let all: Vec<_> = rows.iter().map(|row| row.key.as_str()).collect();
    let among = |range: std::ops::Range<usize>| {
        let mut names = all[range].to_vec();
        names.sort_unstable();
        names
    };
    assert_eq!(among(0..2), ["a", "b"]);
    assert_eq!(among(2..6), ["c", "d", "free", "out"]);
    let former_leases = store.capabilities().former_leases;
    if former_leases {
        assert_eq!(among(6..8), ["e", "f"]);
    }

    let urgent = || InspectFilter::new().urgent_first();
    let by_key = ["a", "b", "c", "d", "e", "f", "free", "out"];
    for (filter, whole) in [
        (urgent(), &all[..6]),
        (urgent().include_free(), &all),
        (urgent().include_free().prefix("f"), &["free", "f"]),
        (InspectFilter::new().include_free(), &by_key),
        (InspectFilter::new().include_free().prefix("f"), &["f", "free"]),
    ] {
        let mut whole = whole.to_vec();
        whole.retain(|name| former_leases || !["e", "f"].contains(name));
        for size in 1..=3_u32 {
            let mut pages = Vec::new();
            let mut next = filter.clone().limit(size);
            loop {
                let rows = store.inspect(&next).await.expect("inspect reads rows");
                let Some(last) = rows.last() else { break };
                next = next.after(last.position());
                pages.extend(rows.into_iter().map(|row| row.key.as_str().to_owned()));
                assert!(pages.len() <= whole.len(), "{filter:?} goes on: {pages:?}");
            }
            assert_eq!(pages, whole, "{filter:?} in pages of {size}");
        }
    }
}

/// Times are µs since the Unix epoch, and they advance.
pub async fn clock_is_near_ours_and_moves(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let asker = Asker::new("clock");
    granted(&*store, asker.acquire(LONG)).await;
    let first = existing(&*store, &asker.key).await;
    let (ours, theirs) = (Timestamp::from(SystemTime::now()), first.now);
    assert!(
        ours.max(theirs).since(ours.min(theirs)) < Duration::from_mins(10),
        "the store's clock says {theirs:?}, ours {ours:?}"
    );
    until(&*store, &asker.key, "the clock to move", |row| {
        row.now > first.now
    })
    .await;
}

/// A second `migrate` and `check_schema` succeed, and no row is lost.
pub async fn migrating_again_keeps_the_rows(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let asker = Asker::new("migrate");
    granted(&*store, asker.acquire(LONG)).await;
    other.migrate().await.expect("migrate may be called again");
    other.check_schema().await.expect("the tables are there");
    assert!(existing(&*store, &asker.key).await.is_held());
}

/// Capabilities are the same each time and for each handle, and agree with the fence source.
pub async fn capabilities_are_constant(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let capabilities = store.capabilities();
    assert_eq!(capabilities, store.capabilities());
    assert_eq!(capabilities, other.capabilities());
    assert!(!capabilities.name.is_empty());
    assert!(capabilities.concurrency >= 1);
    let parts = 0..capabilities.parts;
    assert!(!parts.is_empty());
    let verifies = |part| store.transaction_source(part).is_some();
    assert_eq!(capabilities.verify_in, parts.clone().all(verifies));
    for name in ["a", "b", "c", "d"] {
        assert!(parts.contains(&store.part_of(&Asker::new(name).key)));
    }
}
