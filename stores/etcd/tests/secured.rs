//! TLS, authentication, and the rights that the README lists.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::store::{Acquire, Action, Outcome, Request, Store as _, StoreError, StoreErrorKind};
use dblock::{InspectFilter, Key, LockError, LockManager, LockOptions};
use dblock_etcd::EtcdStore;
use dblock_etcd::etcd_client::{
    Certificate, Client, ConnectOptions, Identity, Permission, PermissionType, RoleRevokePermissionOptions,
    TlsOptions,
};
use dblock_servers::certificates::{Certificates, USER};
use dblock_servers::etcd::{Tokens, start_with_tls};
use dblock_servers::{Kind, Purpose, Server, is_installed};
use dblock_tests::backend::renewed;
use uuid::Uuid;

const PASSWORD: &str = "hush";
const TTL: Duration = Duration::from_secs(3);

fn is_there() -> bool {
    let is_there = is_installed(Kind::Etcd) && Certificates::can_be_made();
    if !is_there {
        dblock_tests::left_out("an etcd of its own", "install etcd-server and openssl");
    }
    is_there
}

struct Etcd {
    certificates: Certificates,
    server: Server,
}

impl Etcd {
    /// With authentication, and with a user who has the rights that the README lists.
    async fn secured(tokens: Tokens) -> Option<Self> {
        let etcd = Self::open(tokens).await?;
        switch_authentication_on(etcd.admin(None).await).await;
        Some(etcd)
    }

    /// With TLS only.
    async fn open(tokens: Tokens) -> Option<Self> {
        if !is_there() {
            return None;
        }
        let certificates = Certificates::make().await.unwrap();
        let server = start_with_tls(&certificates, tokens).await.unwrap();
        Some(Self { certificates, server })
    }

    fn trusted(&self) -> TlsOptions {
        TlsOptions::new().ca_certificate(Certificate::from_pem(self.certificates.authority()))
    }

    fn tls(&self) -> TlsOptions {
        let (certificate, key) = self.certificates.client();
        self.trusted().identity(Identity::from_pem(certificate, key))
    }

    fn anonymous(&self) -> EtcdStore {
        EtcdStore::new([self.server.url()])
            .unwrap()
            .tls(self.tls())
            .unwrap()
    }

    fn store(&self) -> EtcdStore {
        self.anonymous().user(USER, PASSWORD)
    }

    async fn manager(&self) -> LockManager {
        LockManager::builder(self.store()).build().await.unwrap()
    }

    /// As the user `root`, once there is authentication.
    async fn admin(&self, user: Option<&str>) -> Client {
        let mut options = ConnectOptions::new().with_tls(self.tls());
        if let Some(user) = user {
            options = options.with_user(user, PASSWORD);
        }
        Box::pin(Client::connect([self.server.url()], Some(options)))
            .await
            .unwrap()
    }
}

async fn switch_authentication_on(mut admin: Client) {
    for user in ["root", USER] {
        admin.user_add(user, PASSWORD, None).await.unwrap();
        admin.role_add(user).await.unwrap();
        admin.user_grant_role(user, user).await.unwrap();
    }
    let rights = Permission::new(PermissionType::Readwrite, "dblock/").with_prefix();
    admin.role_grant_permission(USER, rights).await.unwrap();
    admin.auth_enable().await.unwrap();
}

fn options() -> LockOptions {
    LockOptions::new().ttl(TTL).wait(Duration::from_secs(40))
}

async fn one(store: &EtcdStore) -> Result<Outcome, StoreError> {
    let ask = Acquire::new(Uuid::now_v7(), TTL, "test");
    let key = Key::new(None, "one").unwrap();
    let request = Request::new(key, Uuid::now_v7(), Action::Acquire(ask));
    store.apply(&[request]).await.remove(0)
}

/// Everything that a manager does, by the rights of the README.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_suffice() {
    for tokens in [Tokens::Simple, Tokens::Jwt] {
        let Some(etcd) = Etcd::secured(tokens).await else {
            return;
        };
        let (locks, other) = (etcd.manager().await, etcd.manager().await);
        let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
        assert!(other.lock("k").ttl(TTL).try_acquire().await.unwrap().is_none());
        let waits = tokio::spawn(async move {
            let next = other.lock("k").options(&options()).acquire().await.unwrap();
            next.release().await.unwrap();
            other.lock("forced").options(&options()).acquire().await.unwrap()
        });
        // It is renewed meanwhile.
        tokio::time::sleep(TTL * 2).await;
        assert!(!guard.is_lost(), "{guard:?}");
        guard.release().await.unwrap();
        let forced = waits.await.unwrap();
        let admin = locks.admin();
        let rows = admin.list(InspectFilter::new()).await.unwrap();
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert!(admin.revoke("forced").await.unwrap());
        assert!(admin.force_release("forced").await.unwrap());
        let findings = admin.diagnose().await.unwrap();
        assert!(
            findings.iter().any(|finding| finding.check == "compaction"),
            "{findings:?}"
        );
        drop(forced);
    }
}

/// Each change of a user makes void what a member has signed for those who have logged in.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_a_change_of_users_has_ended_is_made_again() {
    let Some(etcd) = Etcd::secured(Tokens::Jwt).await else {
        return;
    };
    let mut admin = etcd.admin(Some("root")).await;
    let store = etcd.store();
    for name in ["one", "two"] {
        // The connection is open, and logged in.
        one(&store).await.unwrap();
        admin.user_add(name, PASSWORD, None).await.unwrap();
        // The administrator's login is void, too.
        admin = etcd.admin(Some("root")).await;
        let refused = one(&store).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Unreachable, "{refused}");
        assert!(refused.to_string().contains("login to etcd is over"), "{refused}");
        one(&store).await.unwrap();
    }
    // A manager's callers do not notice.
    let locks = etcd.manager().await;
    let ttl = Duration::from_secs(15);
    let guard = locks
        .lock("k")
        .options(&options())
        .ttl(ttl)
        .acquire()
        .await
        .unwrap();
    admin.user_add("three", PASSWORD, None).await.unwrap();
    renewed(&guard).await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_names_no_user_learns_how() {
    if !is_there() {
        return;
    }
    let server = Server::fresh(Kind::Etcd, Purpose::Tests).await.unwrap();
    let admin = Box::pin(Client::connect([server.url()], None)).await.unwrap();
    let store = EtcdStore::new([server.url()]).unwrap();
    // The connection is open already.
    store.check_schema().await.unwrap();
    switch_authentication_on(admin).await;
    let (kind, text) = said(store.clone()).await;
    assert_eq!(kind, StoreErrorKind::Refused, "{text}");
    assert!(text.contains("name one by `EtcdStore::user`"), "{text}");
    store.user(USER, PASSWORD).check_schema().await.unwrap();
}

async fn said(store: EtcdStore) -> (StoreErrorKind, String) {
    let error = store.check_schema().await.unwrap_err();
    (error.kind(), error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_learns_why() {
    let Some(etcd) = Etcd::open(Tokens::Simple).await else {
        return;
    };
    let (kind, text) = said(etcd.store()).await;
    assert_eq!(kind, StoreErrorKind::Refused, "{text}");
    assert!(text.contains("authentication is off"), "{text}");

    switch_authentication_on(etcd.admin(None).await).await;
    // The user that the certificate names is enough.
    etcd.anonymous().check_schema().await.unwrap();
    let mut admin = etcd.admin(Some("root")).await;
    let (kind, text) = said(etcd.anonymous().user(USER, "guessed")).await;
    assert_eq!(kind, StoreErrorKind::Refused, "{text}");
    assert!(
        text.contains("check the user and password") && !text.contains("guessed"),
        "{text}"
    );

    let whole = RoleRevokePermissionOptions::new().with_prefix();
    admin
        .role_revoke_permission(USER, "dblock/", Some(whole))
        .await
        .unwrap();
    let (kind, text) = said(etcd.store()).await;
    assert_eq!(kind, StoreErrorKind::Refused, "{text}");
    assert!(text.contains("its role may do what the README"), "{text}");

    let stranger = EtcdStore::new([etcd.server.url()]).unwrap();
    let (_, text) = said(stranger.clone()).await;
    assert!(
        text.contains("certificate"),
        "the server's is signed by nobody known: {text}"
    );
    let (kind, text) = said(stranger.tls(etcd.trusted()).unwrap()).await;
    assert_eq!(
        kind,
        StoreErrorKind::Unreachable,
        "we have no certificate: {text}"
    );
}

#[test]
fn certificates_that_cannot_be_used_are_refused_at_once() {
    let store = |address: &str| EtcdStore::new([address]).unwrap();
    let nonsense = || TlsOptions::new().identity(Identity::from_pem("hush", "hush"));
    let refused = store("https://etcd-1:2379").tls(nonsense()).unwrap_err();
    assert!(matches!(refused, LockError::Invalid { .. }), "{refused:?}");
    assert!(!refused.to_string().contains("hush"), "{refused}");
    let refused = store("http://etcd-1:2379").tls(TlsOptions::new()).unwrap_err();
    assert!(refused.to_string().contains("https://"), "{refused}");
}
