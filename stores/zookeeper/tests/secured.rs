//! TLS, and a user by a password or by a certificate.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::store::{Store as _, StoreErrorKind};
use dblock::{LockError, LockManager, LockOptions};
use dblock_servers::certificates::Certificates;
use dblock_servers::zookeeper::start_with_tls;
use dblock_servers::{Kind, Server, is_installed};
use dblock_zookeeper::ZookeeperStore;
use dblock_zookeeper::zookeeper_client::{Acl, AuthId, Permission, TlsOptions};

struct Secured {
    certificates: Certificates,
    server: Server,
}

impl Secured {
    async fn start() -> Option<Self> {
        if !is_installed(Kind::ZooKeeper) || !Certificates::can_be_made() {
            dblock_tests::left_out("a ZooKeeper server of its own", "install zookeeper and openssl");
            return None;
        }
        let certificates = Certificates::make().await.unwrap();
        let server = start_with_tls(&certificates).await.unwrap();
        Some(Self { certificates, server })
    }

    fn trusted(&self) -> TlsOptions {
        TlsOptions::new()
            .with_pem_ca(&self.certificates.authority())
            .unwrap()
    }

    fn tls(&self) -> TlsOptions {
        let (certificate, key) = self.certificates.client();
        self.trusted().with_pem_identity(&certificate, &key).unwrap()
    }

    /// `user`: `name:password@`, or nothing.
    fn open(&self, user: &str, node: &str) -> ZookeeperStore {
        let (_, host) = self.server.url().split_once("://").unwrap();
        ZookeeperStore::new(&format!("zookeeper://{user}{host}/{node}")).unwrap()
    }
}

/// Its first session takes long while many servers start side by side.
async fn built(store: ZookeeperStore) -> Result<LockManager, StoreErrorKind> {
    loop {
        match LockManager::builder(store.clone()).build().await {
            Ok(locks) => return Ok(locks),
            Err(LockError::Store { source, .. }) if source.is_retryable() => {}
            Err(LockError::Store { source, .. }) => return Err(source.kind()),
            Err(error) => panic!("{error}"),
        }
    }
}

async fn works(store: ZookeeperStore) {
    let options = LockOptions::new().wait(Duration::from_secs(20));
    let locks = built(store).await.unwrap();
    let guard = locks.lock("k").options(&options).acquire().await.unwrap();
    guard.release().await.unwrap();
}

async fn refused(store: ZookeeperStore) {
    assert_eq!(built(store).await.unwrap_err(), StoreErrorKind::Refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_sent_by_tls_and_keeps_others_out() {
    let Some(secured) = Secured::start().await else {
        return;
    };
    let open = |user| secured.open(user, "owned").tls(secured.trusted());
    works(open("us:hush@")).await;
    refused(open("us:wrong@")).await;
    works(open("us:hush@")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_a_user_too() {
    let Some(secured) = Secured::start().await else {
        return;
    };
    let with_list = |tls| {
        let owner = Acl::new(Permission::ALL, AuthId::authed());
        secured.open("", "certified").tls(tls).acls([owner])
    };
    // Nobody is named for whom the nodes could be.
    let nobody = with_list(secured.trusted());
    refused(nobody).await;
    works(with_list(secured.tls())).await;
    let stranger = secured.open("", "certified").tls(secured.trusted());
    refused(stranger).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_plain_text_nor_a_server_that_nobody_trusts_is_used() {
    let Some(secured) = Secured::start().await else {
        return;
    };
    let strange = Certificates::make().await.unwrap();
    let strange = TlsOptions::new().with_pem_ca(&strange.authority()).unwrap();
    for store in [secured.open("", "owned"), secured.open("", "owned").tls(strange)] {
        let error = store.check_schema().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    }
}
