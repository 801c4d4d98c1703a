//! Keys are bytes.

use dblock::InspectFilter;
use dblock::store::{Outcome, Store};

use crate::place::Place;
use crate::{acquire, one, token};

#[tokio::test]
async fn keys_that_a_text_collation_would_fold_are_different_rows() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let keys = [
        "a", "A", "a ", "a  ", " a", "ä", "a\u{308}", "ß", "ss", "🔒", "🔓", "a%", "a_", "a'\\\"", "a\n",
    ];
    let batch: Vec<_> = keys.iter().map(acquire).collect();
    for answer in store.apply(&batch).await {
        token(&answer.unwrap());
    }
    for request in &batch {
        let Outcome::Busy(_) = one(&store, acquire(request.key.as_str())).await else {
            panic!("{}", request.key)
        };
    }
    let names = |prefix: &str| {
        let filter = InspectFilter::new().prefix(prefix);
        let store = &store;
        async move {
            let rows = store.inspect(&filter).await.unwrap();
            rows.iter()
                .map(|row| row.key.as_str().to_owned())
                .collect::<Vec<_>>()
        }
    };
    assert_eq!(names("a%").await, ["a%"]);
    assert_eq!(names("a_").await, ["a_"]);
    assert_eq!(names("a ").await, ["a ", "a  "]);
    assert_eq!(names("A").await, ["A"]);
    let mut sorted = keys.map(str::to_owned);
    sorted.sort_unstable();
    assert_eq!(names("").await, sorted);
    let filter = InspectFilter::new().limit(2);
    assert_eq!(store.inspect(&filter).await.unwrap().len(), 2);
}
