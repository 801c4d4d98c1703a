//! Plans are made once, when the table may be empty. They must be good when it is large.

use std::time::Duration;

use dblock::store::{Request, Store};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::time::sleep;

use crate::bench::{Bench, TTL, acquire, extend, queueing, release};

const ROWS: i64 = 20_000;

/// How many entries of the table and of its index have been read, as far as sessions have said so.
async fn reads(bench: &Bench, user: &mut PgConnection) -> i64 {
    let sql = format!(
        "SELECT (seq_tup_read + idx_tup_fetch + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes i
            WHERE i.relid = t.relid))::bigint
        FROM pg_stat_user_tables t WHERE relid = '{}'::regclass",
        bench.table
    );
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(user)
        .await
        .unwrap()
}

/// How many sessions the store has.
async fn sessions(user: &mut PgConnection) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dblock-plans'";
    sqlx::query_scalar(sql).fetch_one(user).await.unwrap()
}

/// No statement reads rows but those that it is about, whichever state they are in.
#[tokio::test]
async fn a_plan_for_an_empty_table_is_good_for_a_large_one() {
    let Some(bench) = Bench::new("plans").await else {
        return;
    };
    let mut user = bench.user().await;
    let store = bench.store_with(|url| url.push_str("application_name=dblock-plans"));
    // Autovacuum makes new plans, sooner or later.
    bench.run("ALTER TABLE {t} SET (autovacuum_enabled = off)").await;
    let before = reads(&bench, &mut user).await;
    let all = |names: [&str; 2], round: usize| -> Vec<Request> {
        names.map(|name| acquire(format!("{name} {round}"))).into()
    };
    for round in 0..2 {
        if round == 1 {
            bench
                .run(&format!(
                    "INSERT INTO {{t}} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token,
                        fence_ceiling, acquired_at, holder)
                    SELECT 'idle ' || n, gen_random_uuid(), 0, 0, gen_random_uuid(), 0, 0, 0, ''
                    FROM generate_series(1, {ROWS}) n"
                ))
                .await;
        }
        let (first, second) = (all(["a", "b"], round), all(["a", "b"], round));
        let queue = |request: &Request| queueing(request.key.as_str(), TTL);
        let next: Vec<_> = second.iter().map(queue).collect();
        let batches: [Vec<Request>; 9] = [
            first.clone(),
            second.clone(),
            next.clone(),
            first.iter().map(|request| extend(request, 2)).collect(),
            first.iter().map(release).collect(),
            // The row was passed on.
            next.iter().map(release).collect(),
            second.iter().map(release).collect(),
            second.clone(),
            all(["idle", "new"], round),
        ];
        for batch in &batches {
            store
                .apply(batch)
                .await
                .into_iter()
                .for_each(|answer| drop(answer.unwrap()));
            store.apply(&batch[..1]).await.pop().unwrap().unwrap();
        }
    }
    // A session says what it has read when it ends, at the latest.
    drop(store);
    while sessions(&mut user).await > 0 {
        sleep(Duration::from_millis(10)).await;
    }
    let mut after = reads(&bench, &mut user).await;
    while after == before {
        sleep(Duration::from_millis(10)).await;
        after = reads(&bench, &mut user).await;
    }
    assert!(after < ROWS, "{after} entries were read");
}
