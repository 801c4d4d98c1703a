//! Missing tables.

use dblock_core::InspectFilter;
use dblock_core::store::StoreErrorKind;
use tokio::task::JoinSet;

use super::AnyFixture;
use super::context::{Asker, LONG};

/// Without tables every call names the remedy, and `migrate`, on many nodes at once, creates them. A store that
/// needs no tables is ready at once.
pub async fn missing_tables_name_the_remedy(fixture: &dyn AnyFixture) {
    let Some(one) = fixture.bare().await else {
        let store = fixture.store().await;
        store
            .check_schema()
            .await
            .expect("a store without tables is ready");
        return store.migrate().await.expect("there is nothing to migrate");
    };
    let mut missing = vec![
        one.check_schema().await.err(),
        one.inspect(&InspectFilter::new()).await.err(),
    ];
    let batch = ["a", "b"].map(|name| Asker::new(name).acquire(LONG));
    missing.extend(one.apply(&batch).await.into_iter().map(Result::err));
    for error in missing {
        let error = error.expect("there are no tables");
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("migrate"), "{error}");
    }

    let mut nodes = JoinSet::new();
    for _ in 0..10 {
        let node = fixture.bare().await.expect("the same answer each time");
        nodes.spawn(async move {
            node.migrate().await?;
            node.check_schema().await
        });
    }
    for migrated in nodes.join_all().await {
        migrated.expect("each of ten nodes that migrate at once finds the tables");
    }
    one.check_schema().await.expect("the tables are there");
}
