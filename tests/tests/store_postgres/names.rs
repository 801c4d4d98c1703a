//! A schema of somebody else's that comes first in the `search_path`, with functions, types and operators
//! under the names of the server's own.

use std::fmt::Write as _;
use std::time::Duration;

use dblock::InspectFilter;
use dblock::store::{Outcome, PostgresStore, Released, Store, WakeUp};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::mpsc;

use crate::bench::{Bench, acquire, ask, extend, key, queueing, release, token};
use crate::poolers::lending_pooler;

const HOSTILE: &str = "DROP SCHEMA IF EXISTS test_hostile CASCADE; CREATE SCHEMA test_hostile;
    DO $do$
    DECLARE of record;
    BEGIN
        -- Every function of the server's that dblock could mean, with the same arguments.
        FOR of IN SELECT proname, pg_get_function_identity_arguments(oid) arguments, pg_get_function_result(oid) result
            FROM pg_proc WHERE prokind = 'f' AND pronamespace = 'pg_catalog'::regnamespace AND proname IN (
                'clock_timestamp', 'date_part', 'pg_notify', 'starts_with', 'current_setting', 'set_config', 'decode',
                'convert_from', 'rtrim', 'hashtextextended', 'pg_advisory_xact_lock', 'to_regclass', 'quote_ident',
                'current_schema', 'pg_stat_get_activity', 'pg_backend_pid', 'pg_terminate_backend', 'unnest')
                AND NOT pg_get_function_identity_arguments(oid) LIKE '%OUT %'
        LOOP
            EXECUTE format('CREATE FUNCTION test_hostile.%I(%s) RETURNS %s LANGUAGE plpgsql AS $body$
                BEGIN RAISE EXCEPTION ''hostile''; END $body$', of.proname, of.arguments, of.result);
        END LOOP;
        CREATE FUNCTION test_hostile.concat(VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $body$
            BEGIN RAISE EXCEPTION 'hostile'; END $body$;
        -- And every operator that it uses.
        FOR of IN SELECT oprname, oprleft::regtype l, oprright::regtype r, oprresult::regtype result FROM pg_operator
            WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprname IN ('=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '/', '||')
                AND oprleft IN ('int4'::regtype, 'int8'::regtype, 'float8'::regtype, 'text'::regtype, 'uuid'::regtype,
                    'tid'::regtype, 'oid'::regtype, 'bool'::regtype)
                AND oprright::regtype::text NOT LIKE 'any%'
        LOOP
            EXECUTE format('CREATE FUNCTION test_hostile.operates(%s, %s, OUT %s) LANGUAGE plpgsql AS $body$
                BEGIN RAISE EXCEPTION ''hostile''; END $body$', of.l, of.r, of.result);
            EXECUTE format('CREATE OPERATOR test_hostile.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = test_hostile.operates)',
                of.oprname, of.l, of.r);
            EXECUTE format('ALTER FUNCTION test_hostile.operates(%s, %s) RENAME TO %I',
                of.l, of.r, 'operates ' || of.oprname);
        END LOOP;
    END $do$;
    CREATE DOMAIN test_hostile.text AS pg_catalog.text CHECK (false);
    CREATE DOMAIN test_hostile.uuid AS pg_catalog.uuid CHECK (false);
    CREATE DOMAIN test_hostile.oid AS pg_catalog.oid CHECK (false);
    CREATE DOMAIN test_hostile.regclass AS pg_catalog.regclass CHECK (false);";

fn hostile(url: &mut String) {
    url.push_str("options=-c%20search_path%3Dtest_hostile%2Cpg_catalog%2Cpublic");
}

async fn use_it(store: &PostgresStore, other: &PostgresStore) {
    let (holder, next) = (acquire("a"), queueing("a", Duration::from_secs(3)));
    let fence = token(&ask(store, &holder).await);
    assert!(matches!(ask(other, &next).await, Outcome::Queued { .. }));
    assert!(matches!(
        ask(store, &extend(&holder, 1)).await,
        Outcome::Extended { .. }
    ));
    let passed_on = ask(store, &release(&holder)).await;
    assert!(
        matches!(passed_on, Outcome::Released(Released::PassedOn)),
        "{passed_on:?}"
    );
    assert!(token(&ask(other, &next).await) > fence);
    assert_eq!(
        store
            .inspect(&InspectFilter::new().prefix("a"))
            .await
            .unwrap()
            .len(),
        1
    );
    assert!(store.revoke(&key("a")).await.unwrap());
    assert!(store.force_release(&key("a")).await.unwrap());
    let batch = ["b", "c"].map(acquire);
    for answer in store.apply(&batch).await {
        token(&answer.unwrap());
    }
    for answer in store
        .apply(&batch.each_ref().map(|request| extend(request, 1)))
        .await
    {
        assert!(matches!(answer, Ok(Outcome::Extended { .. })), "{answer:?}");
    }
    for answer in store.apply(&batch.each_ref().map(release)).await {
        assert!(
            matches!(answer, Ok(Outcome::Released(Released::Freed))),
            "{answer:?}"
        );
    }
    store.purge(Duration::from_hours(24), None, 10).await.unwrap();
}

#[tokio::test]
async fn a_hostile_schema_in_the_search_path_changes_nothing() {
    let Some(bench) = Bench::new("names").await else {
        return;
    };
    bench.run(HOSTILE).await;
    let store = bench.store_with(hostile);
    store.check_schema().await.unwrap();
    let listening = bench.store_with(hostile);
    let (tell, mut told) = mpsc::unbounded_channel();
    let listener =
        tokio::spawn(async move { listening.listen(&move |wake_up| drop(tell.send(wake_up))).await });
    assert_eq!(
        told.recv().await,
        Some(WakeUp::Listening),
        "{:?}",
        listener.is_finished()
    );
    use_it(&store, &bench.store()).await;
    assert!(matches!(told.recv().await, Some(WakeUp::PassedOn { .. })));
    listener.abort();

    // Behind a pooler each statement brings its settings along.
    let lender = lending_pooler(bench.address()).await;
    let mut url = bench.url.clone();
    url.push(if url.contains('?') { '&' } else { '?' });
    write!(url, "host={}&port={}&", lender.ip(), lender.port()).unwrap();
    hostile(&mut url);
    // Its session is the one that all share.
    let _user = PgConnection::connect(&url).await.unwrap();
    let pooled = || PostgresStore::open(&url, &bench.table).unwrap();
    use_it(&pooled(), &pooled()).await;

    // The fence check, in a session of the user's.
    let request = acquire("d");
    let fence = token(&ask(&store, &request).await);
    let mut user = bench.user().await;
    sqlx::raw_sql("SET search_path = test_hostile, pg_catalog, public")
        .execute(&mut user)
        .await
        .unwrap();
    let mut transaction = user.begin().await.unwrap();
    let check = store.verify_in(&mut transaction, &request.key, request.lease_id, fence);
    assert!(check.await.unwrap().is_some());
    transaction.rollback().await.unwrap();
}

/// New tables are made in the first schema as ever, and in terms of the server's own types; those of version
/// 1 are upgraded where they are.
#[tokio::test]
async fn a_hostile_schema_changes_no_migration() {
    let Some(bench) = Bench::new("names_migrated").await else {
        return;
    };
    bench
        .run(&HOSTILE.replace("test_hostile", "test_hostile_2"))
        .await;
    let hostile = |url: &mut String| {
        url.push_str("options=-c%20search_path%3Dtest_hostile_2%2Cpg_catalog%2Cpublic");
    };
    bench
        .run("ALTER TABLE {t} DROP COLUMN next_lease; UPDATE {t}_version SET version = 1")
        .await;
    let store = bench.store_with(hostile);
    store.migrate().await.unwrap();
    token(&ask(&bench.store(), &acquire("upgraded")).await);
    assert!(!bench.table.contains('.'));
    let fresh = Bench {
        url: bench.url.clone(),
        table: format!("{}_fresh", bench.table),
    };
    let store = fresh.store_with(hostile);
    store.migrate().await.unwrap();
    use_it(&store, &fresh.store_with(hostile)).await;
}
