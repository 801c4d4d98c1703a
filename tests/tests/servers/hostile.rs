//! Names that try to be something else: nothing outside their own row changes, and what cannot be a name is
//! refused before anything is sent.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::Duration;

use dblock::store::{Acquire, Action, Extend, MemoryStore, Outcome, Released, Request, StoreErrorKind};
use dblock::{InspectFilter, Key, LockError, LockManager, LockOptions, open};
use dblock_conformance::Fixture;
use dblock_tests::backend::Place;
use dblock_tests::{Backend, Row, on_every_store};
use proptest::prelude::*;
use uuid::Uuid;

on_every_store!(
    hostile_keys_change_nothing_outside_their_row,
    hostile_owners_and_holders_change_nothing_outside_their_row,
);

/// Too long to run out during a test.
const LONG: Duration = Duration::from_secs(30);

/// Keys of others, as alike to hostile ones as they can be.
const VICTIMS: [&str; 6] = ["victim", "victim ", "VICTIM", "vict_m", "v%", "'"];

/// Texts that are SQL, patterns, escapes or parameters somewhere.
fn hostile(table: &str) -> Vec<String> {
    let mut texts: Vec<String> = [
        "' OR '1'='1",
        "victim' -- ",
        "victim'; DROP TABLE {table}; --",
        "'; UPDATE {table} SET reentrant_count = 0, lease_id = lock_owner; --",
        "\"; DELETE FROM {table}; --",
        "`; DELETE FROM {table}; --",
        "\\'; DELETE FROM {table}; --",
        "\\\\'; DELETE FROM {table}; --",
        "');DELETE FROM {table};('",
        "'}]); DELETE FROM {table}; --",
        "{table}",
        "{table}_version",
        "*/ DELETE FROM {table} /*",
        "/*!50000 ' */",
        "$$; DELETE FROM {table}; $$",
        "$1",
        "$2$1",
        "?",
        ":lock_key",
        "%",
        "_",
        "victi_",
        "vict%",
        "v*",
        "[v]ictim",
        "^victim$",
        "\\",
        "\\%",
        "victim\\",
        "E'victim'",
        "0x76696374696d",
        "X'76696374696D'",
        "\\x76696374696d",
        "\\u0027",
        "victim\u{ad}",
        "victi\u{6d}\u{301}",
        "\u{2019}; --",
        "\u{ff07}; --",
        "\u{bf}'; --",
        "victim\r\n",
        "\u{1a}",
        "{\"a\":1}",
        "{victim}",
        "ARRAY['victim']",
        "NULL",
        "../victim",
        "billing:victim",
    ]
    .map(|text| text.replace("{table}", table))
    .into();
    texts.push("'".repeat(255));
    texts.push("\\".repeat(255));
    texts.push("\u{1f512}".repeat(63));
    texts
}

/// The victims' leases, and what else must stay as it is.
struct Untouched {
    backend: Backend,
    rows: Vec<Row>,
}

impl Untouched {
    async fn hold(backend: &Backend) -> Self {
        for key in VICTIMS {
            backend.die_inside(key, LONG * 20).await;
        }
        if has_sql(backend) {
            backend.execute("CREATE TABLE {table}_canary (alive INT)").await;
        }
        let mut untouched = Self {
            backend: backend.clone(),
            rows: Vec::new(),
        };
        untouched.rows = untouched.read().await;
        untouched
    }

    async fn read(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for key in VICTIMS {
            // The clock alone goes on.
            rows.push(Row {
                now: 0,
                ..self.backend.the_row(key).await
            });
        }
        rows
    }

    /// All keys in the table are the victims' and `others`.
    async fn check(&self, others: &[String]) {
        assert_eq!(self.read().await, self.rows);
        let filter = InspectFilter::new().include_free();
        let found = self.backend.manager().await.admin().list(filter).await.unwrap();
        let found: BTreeSet<_> = found.iter().map(|row| row.key.as_str()).collect();
        let expected = VICTIMS
            .into_iter()
            .chain(others.iter().map(String::as_str))
            .collect();
        assert_eq!(found, expected);
        if has_sql(&self.backend) {
            self.backend.execute("DROP TABLE {table}_canary").await;
        }
    }
}

fn has_sql(backend: &Backend) -> bool {
    !matches!(backend.place(), Place::Memory(_))
}

/// The answer to a call, which may need a new connection: a busy server is given some time to accept it.
async fn connected<T>(call: impl AsyncFn() -> Result<T, LockError>) -> T {
    for _ in 0..5 {
        match call().await {
            Err(LockError::Store { source, .. }) if source.kind() == StoreErrorKind::Unreachable => {}
            answer => return answer.unwrap(),
        }
    }
    panic!("the server accepts no connection");
}

async fn hostile_keys_change_nothing_outside_their_row(backend: Backend) {
    let untouched = Untouched::hold(&backend).await;
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let options = LockOptions::new().ttl(LONG);
    let keys = hostile(&backend.table);
    for key in &keys {
        let body = async {
            let busy = other.lock(key).options(&options).acquire().await.unwrap_err();
            assert!(busy.is_busy(), "{busy:?}");
            locks.lock(key).options(&options).run(async {}).await.unwrap();
        };
        locks.lock(key).options(&options).run(body).await.unwrap();

        let guard = locks.lock(key).options(&options).acquire().await.unwrap();
        let found = other
            .admin()
            .list(InspectFilter::new().prefix(key))
            .await
            .unwrap();
        let found: Vec<_> = found.iter().map(|row| row.key.as_str()).collect();
        let expected: Vec<_> = VICTIMS
            .into_iter()
            .filter(|victim| victim.starts_with(key))
            .collect();
        assert!(found.contains(&key.as_str()));
        assert_eq!(found.len(), 1 + expected.len(), "{found:?} for {key:?}");
        assert!(connected(async || other.admin().revoke(key).await).await);
        assert!(connected(async || other.admin().force_release(key).await).await);
        assert!(!connected(async || other.admin().force_release(key).await).await);
        drop(guard);
    }
    untouched.check(&keys).await;
}

async fn hostile_owners_and_holders_change_nothing_outside_their_row(backend: Backend) {
    let untouched = Untouched::hold(&backend).await;
    let store = backend.store().await;
    let ask = async |key: &str, lease_id, action| {
        let key = Key::new(None, key).unwrap();
        let request = Request::new(key, lease_id, action);
        let mut answers = store.apply(std::slice::from_ref(&request)).await;
        answers.remove(0).unwrap()
    };
    let acquire = |owner, holder: &str| Action::Acquire(Acquire::new(owner, LONG, holder));
    let extend = Action::Extend(Extend::new(7, LONG * 100));
    // Ids that a careless program or a forger would use: none, all, and those of the victim's owner.
    let theirs = untouched.rows[0].lock_owner;
    for id in [Uuid::nil(), Uuid::max(), theirs] {
        for victim in VICTIMS {
            let busy = ask(victim, id, acquire(id, "thief")).await;
            assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
            assert_eq!(ask(victim, id, extend.clone()).await, Outcome::Lost);
            assert_eq!(ask(victim, id, Action::Release).await, Outcome::Lost);
        }
    }
    let mut keys = Vec::new();
    for (n, holder) in hostile(&backend.table).into_iter().enumerate() {
        let (key, lease_id) = (format!("own {n}"), Uuid::now_v7());
        let granted = ask(&key, lease_id, acquire(theirs, &holder)).await;
        assert!(matches!(granted, Outcome::Granted { .. }), "{granted:?}");
        assert_eq!(backend.the_row(&key).await.holder, holder);
        let released = ask(&key, lease_id, Action::Release).await;
        assert!(
            matches!(released, Outcome::Released(Released::Freed)),
            "{released:?}"
        );
        keys.push(key);
    }
    untouched.check(&keys).await;
}

/// The rule for table names, written in another way than in the code.
fn is_table_name(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let is_part = |part: &&str, most| {
        let mut bytes = part.bytes();
        let first = bytes.next();
        first.is_some_and(|byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'_'))
            && bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_'))
            && part.len() <= most
    };
    match &parts[..] {
        [table] => is_part(table, 55),
        [schema, table] => is_part(schema, 63) && is_part(table, 55),
        _ => false,
    }
}

/// Names of every length, and names with one thing in them that does not belong there.
fn names() -> impl Strategy<Value = String> {
    let wrong = [
        "\"", "`", "[", "]", "'", ";", " ", "-", "/*", "\\", "\0", "\n", "$1", "(", ".", "..", "é", "ａ",
        "\u{200b}",
    ];
    let wrong =
        prop_oneof![4 => proptest::sample::select(wrong.to_vec()).prop_map(str::to_owned), 1 => "\\PC"];
    let around = ("[a-zA-Z_]?[a-zA-Z0-9_]{0,6}", wrong, "[a-zA-Z0-9_]{0,6}");
    let long =
        proptest::sample::select(vec![0, 1, 54, 55, 56, 62, 63, 64]).prop_map(|length| "n".repeat(length));
    prop_oneof![
        3 => around.prop_map(|(before, wrong, after)| before + &wrong + &after),
        1 => "[a-zA-Z0-9_.]{0,8}",
        1 => (long.clone(), long.clone()).prop_map(|(schema, table)| format!("{schema}.{table}")),
        1 => long,
    ]
}

fn is_invalid(error: &LockError) -> bool {
    matches!(error, LockError::Invalid { .. })
}

proptest! {
    #[test]
    fn only_plain_words_are_table_names(name in names()) {
        let postgres = open::postgres::open("postgres://nobody@127.0.0.1:1/none".parse().unwrap(), &name);
        let mysql = open::mysql::open("mysql://nobody@127.0.0.1:1/none".parse().unwrap(), &name);
        prop_assert_eq!(postgres.is_ok(), is_table_name(&name));
        prop_assert_eq!(mysql.is_ok(), is_table_name(&name));
        let sqlite = open::sqlite::open("sqlite://none.db".parse().unwrap(), &name);
        prop_assert!(sqlite.is_err() || is_table_name(&name));
    }

    #[test]
    fn a_key_is_kept_whole_or_refused(
        namespace in proptest::option::of("[^:\0]{1,40}"),
        key in prop_oneof!["(?s).{0,80}", "[a-z]{200,300}", "(?s)[\u{e000}-\u{10ffff}]{50,70}", ".{0,9}\0.{0,9}"],
    ) {
        let whole = namespace.as_ref().map_or(key.clone(), |namespace| format!("{namespace}:{key}"));
        let fits = !key.is_empty() && !key.contains('\0') && whole.len() <= 255;
        match Key::new(namespace.as_deref(), &key) {
            Ok(made) => {
                prop_assert!(fits);
                prop_assert_eq!(made.as_str(), whole);
            }
            Err(error) => {
                prop_assert!(!fits, "{}", error);
                prop_assert!(is_invalid(&error.into()));
            }
        }
    }

    /// Two namespaces never share a key.
    #[test]
    fn a_namespace_is_a_fence(name in "(?s)[ab:\0 é]{0,6}", key in "[ab:]{1,6}", other in "[ab]{1,3}", other_key in "[ab:]{1,6}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let taken = LockManager::builder(MemoryStore::new()).namespace(&name).build_lazy();
        prop_assert_eq!(taken.is_ok(), !name.is_empty() && !name.contains([':', '\0']));
        if taken.is_ok() && name != other {
            prop_assert_ne!(Key::new(Some(&name), &key).unwrap(), Key::new(Some(&other), &other_key).unwrap());
        }
    }

    /// An error about a URL never repeats its password.
    #[test]
    fn a_url_is_read_or_refused_without_its_password(
        scheme in prop_oneof!["postgres|mysql|mariadb|sqlite|memory|redis|", "\\PC{0,5}"],
        before in "(://|:|/|//)?[a-z:@%]{0,6}",
        after in "[@:/?#%&=]?\\PC{0,20}",
        parameters in prop_oneof!["", "[?&](sslmode|ssl-mode|port|mode|options|statement-cache-capacity|x)=[a-z0-9%-]{0,5}"],
    ) {
        const SECRET: &str = "S3cretOfNobody";
        let url = format!("{scheme}{before}{SECRET}{after}{parameters}");
        if let Err(error) = LockManager::builder_for_url(&url) {
            prop_assert!(is_invalid(&error));
            let said = format!("{error} {error:?}");
            prop_assert!(!said.contains(SECRET), "{} for {}", said, url);
        }
    }
}
