//! Sessions at the same keys at once.

use std::sync::{Arc, Mutex};

use dblock::store::{Action, Outcome, Released, Store};
use dblock::{InspectFilter, Key};
use uuid::Uuid;

use crate::place::Place;
use crate::{acquire, extend, insist, release};

#[tokio::test(flavor = "multi_thread")]
async fn batches_in_mixed_order_meet_no_error_and_no_deadlock() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = Arc::new(place.store());
    let holders: Arc<Mutex<std::collections::HashMap<Key, Uuid>>> = Arc::default();
    let tasks = (0..3).map(|_| {
        let (store, holders) = (store.clone(), holders.clone());
        tokio::spawn(async move {
            for round in 0..20 {
                // Each round starts with keys that have no row yet, so that inserts collide too.
                let mut requests: Vec<_> = (0..100).map(|n| acquire(format!("{}:{n}", round / 2))).collect();
                fastrand::shuffle(&mut requests);
                let answers = store.apply(&requests).await;
                let mut mine = Vec::new();
                for (request, answer) in requests.iter().zip(answers) {
                    if let Outcome::Granted { .. } = answer.unwrap() {
                        let before = holders
                            .lock()
                            .unwrap()
                            .insert(request.key.clone(), request.lease_id);
                        assert_eq!(before, None, "{} was granted twice", request.key);
                        mine.push(request.clone());
                    }
                }
                while !mine.is_empty() {
                    fastrand::shuffle(&mut mine);
                    let half = mine.split_off(mine.len() / 2);
                    let mut mixed: Vec<_> = half.iter().map(release).collect();
                    mixed.extend(mine.iter().map(|request| extend(request, 2)));
                    for request in &half {
                        holders.lock().unwrap().remove(&request.key);
                    }
                    let answers = store.apply(&mixed).await;
                    for (request, answer) in mixed.iter().zip(answers) {
                        match answer.unwrap() {
                            Outcome::Skipped if request.action == Action::Release => {
                                let freed = insist(&store, request.clone()).await;
                                assert!(matches!(freed, Outcome::Released(Released::Freed)), "{freed:?}");
                            }
                            Outcome::Released(Released::Freed)
                            | Outcome::Extended { .. }
                            | Outcome::Skipped => {}
                            other => panic!("{other:?}"),
                        }
                    }
                }
            }
        })
    });
    for done in futures_util::future::join_all(tasks).await {
        done.unwrap();
    }
    let rows = store
        .inspect(&InspectFilter::new().include_free().limit(10_000))
        .await
        .unwrap();
    assert_eq!(rows.len(), 1_000);
    assert!(rows.iter().all(|row| row.reentrant_count == 0));
}
