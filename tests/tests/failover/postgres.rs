//! A PostgreSQL primary and its synchronous standby.

use std::time::Duration;

use dblock::{LockError, LockManager, LockOptions, LostReason};
use dblock_tests::own_server;
use sqlx::{Connection, PgConnection};
use tokio::time::{Instant, sleep, timeout};

use crate::{LONG, moves, patient, process, waiting};

/// Waits until a session of this server listens.
async fn until_somebody_listens(url: &str) {
    let mut admin = PgConnection::connect(url).await.unwrap();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN \"dblock%' AND backend_type = 'client backend'";
    let heard = async {
        while sqlx::query_scalar::<_, i64>(sql)
            .fetch_one(&mut admin)
            .await
            .unwrap()
            == 0
        {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, heard).await.expect("somebody listens");
}

/// Those who hold and wait notice nothing but the time: no lease is lost, and the wait goes on.
#[tokio::test]
async fn a_fail_over_is_followed_and_the_way_back_too() {
    moves::note();
    let Some(mut pair) = own_server::pair().await else {
        return;
    };
    let url = pair.url();
    let holding = LockManager::builder_for_url(&url).unwrap();
    let holding = holding.auto_migrate(true).build().await.unwrap();
    let asking = process(&url).await;
    for round in 1..=2 {
        let held = holding.lock("held").options(&patient()).acquire().await.unwrap();
        let waits = waiting(&asking, "held").await;
        until_somebody_listens(pair.primary().url()).await;
        let standby = pair.standby().url().to_owned();

        pair.primary().kill();
        let free = waiting(&asking, "free").await;
        let refused = asking.lock("busy?").acquire().await.unwrap_err();
        assert!(
            matches!(refused, LockError::Store { .. }) && refused.is_retryable(),
            "{refused:?}"
        );
        let said = refused.to_string();
        assert!(said.contains("none of the servers takes writes now"), "{said}");
        assert_eq!(said.matches("127.0.0.1:").count(), 2, "{said}");
        assert!(said.contains("it is a standby"), "{said}");
        let before = moves::to(&standby);
        pair.promote().await.unwrap();

        free.await.unwrap().release().await.unwrap();
        assert!(!held.is_lost() && !waits.is_finished(), "round {round}");
        // One line for each manager that has moved; the holder moves when it renews or releases.
        assert_eq!(moves::to(&standby), before + 1, "round {round}");
        until_somebody_listens(&standby).await;
        held.release().await.unwrap();
        assert_eq!(moves::to(&standby), before + 2, "round {round}");
        waits.await.unwrap().release().await.unwrap();
        if round == 1 {
            pair.follow().await.unwrap();
        }
    }
}

/// No commit ends, so nothing is granted, and nobody waits for longer than he asked to.
#[tokio::test]
async fn while_the_standby_is_away_nobody_hangs() {
    let Some(mut pair) = own_server::pair().await else {
        return;
    };
    let holding = LockManager::builder_for_url(&pair.url()).unwrap();
    let holding = holding.auto_migrate(true).build().await.unwrap();
    let asking = process(&pair.url()).await;
    let short = LockOptions::new().ttl(Duration::from_secs(2));
    let held = holding.lock("held").options(&short).acquire().await.unwrap();

    pair.standby().kill();
    let since = Instant::now();
    let wait = Duration::from_secs(3);
    let call = asking.lock("free").wait(wait).acquire();
    let refused = timeout(LONG, call).await.unwrap().unwrap_err();
    assert!(
        matches!(refused, LockError::Timeout { .. } | LockError::Store { .. }),
        "{refused:?}"
    );
    assert!(
        since.elapsed() < wait + Duration::from_secs(2),
        "{:?}",
        since.elapsed()
    );
    let lost = timeout(LONG, held.lost())
        .await
        .expect("the lease is not renewed");
    assert!(
        matches!(
            lost,
            LockError::Lost {
                reason: LostReason::Expired,
                ..
            }
        ),
        "{lost:?}"
    );

    pair.standby().restart().await.unwrap();
    let again = asking.lock("free").options(&patient()).acquire().await.unwrap();
    again.release().await.unwrap();

    // The standby is promoted, and the old primary goes on: no commit of it ends any more.
    let held = holding.lock("held").options(&patient()).acquire().await.unwrap();
    let waits = waiting(&asking, "held").await;
    until_somebody_listens(pair.primary().url()).await;
    pair.promote().await.unwrap();
    // The one who waits moves, and so does its listener, whose connection to the old primary still stands.
    until_somebody_listens(pair.primary().url()).await;
    let other = process(&pair.url()).await;
    let (one, two) = (
        holding.lock("two").options(&patient()).acquire(),
        other.lock("two").options(&patient()).acquire(),
    );
    let moved = async {
        let (one, two) = (async { one.await.unwrap().release().await }, async {
            two.await.unwrap().release().await
        });
        tokio::join!(one, two)
    };
    let (one, two) = timeout(LONG, moved).await.expect("both find the new primary");
    one.and(two).unwrap();
    let mut primary = PgConnection::connect(pair.primary().url()).await.unwrap();
    let tokens = "SELECT count(*) FROM distributed_lock WHERE lock_key = 'two'";
    let found: i64 = sqlx::query_scalar(tokens).fetch_one(&mut primary).await.unwrap();
    assert_eq!(found, 1, "granted on the server that was promoted");
    held.release().await.unwrap();
    waits.await.unwrap().release().await.unwrap();
}
