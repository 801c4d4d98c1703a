//! The suite for drivers, over diesel-async.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use dblock::fence::FenceConnection;
use dblock::store::Store;
use dblock_conformance::{End, FenceFixture, Fixture};
use dblock_diesel_async::fence;
use dblock_tests::backend::Place;
use dblock_tests::{Backend, Kind};
use diesel_async::{AsyncConnection, TransactionManager};

/// One module a database.
macro_rules! fence_conformance_of {
    ($store:ident, $kind:ident, $connection:ty) => {
        mod $store {
            use super::{
                Arc, AsyncConnection, Backend, End, FenceConnection, FenceFixture, Fixture, Kind, Place,
                Store, TransactionManager, fence,
            };

            struct OverDiesel(Backend);

            impl Fixture for OverDiesel {
                async fn store(&self) -> Arc<dyn Store> {
                    self.0.store().await
                }
            }

            impl FenceFixture for OverDiesel {
                async fn transaction(&self, body: impl AsyncFnOnce(&mut dyn FenceConnection) -> End) {
                    type Transactions = <$connection as AsyncConnection>::TransactionManager;
                    let Place::$kind(_, url) = self.0.place() else {
                        unreachable!()
                    };
                    let mut connection = <$connection>::establish(url).await.unwrap();
                    Transactions::begin_transaction(&mut connection)
                        .await
                        .unwrap();
                    let ended = match body(&mut fence(&mut connection)).await {
                        End::Commit => Transactions::commit_transaction(&mut connection).await,
                        End::Rollback => Transactions::rollback_transaction(&mut connection).await,
                    };
                    ended.unwrap();
                }
            }

            dblock_conformance::fence_conformance!(Backend::new(Kind::$kind).await.map(OverDiesel));
        }
    };
}

fence_conformance_of!(postgres, Postgres, diesel_async::AsyncPgConnection);
fence_conformance_of!(mysql, MySql, diesel_async::AsyncMysqlConnection);
