//! From a URL, a pool or a function to PostgreSQL.

use std::sync::Arc;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use super::PostgresStore;
use crate::LockError;
use crate::store::Store;
use crate::store::connect_options::OptionsSource;
use crate::store::source::StoreSource;
use crate::store::url;

/// The parameters of a URL that are about TLS, as the driver knows them.
const TLS: [&str; 9] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
];

pub(crate) fn from_url(url: &str) -> Result<StoreSource, LockError> {
    servers(url).map(source)
}

fn servers(url: &str) -> Result<Vec<OptionsSource<PgConnectOptions>>, LockError> {
    url::check_tls("postgres", url, &TLS)?;
    url::servers("postgres", url)
}

/// A store in the database of `options`, for the project's own tests. Opens nothing yet.
///
/// # Errors
/// As [`StoreSource::into_store`].
pub fn open(options: PgConnectOptions, table: &str) -> Result<Arc<dyn Store>, LockError> {
    source(vec![OptionsSource::fixed(options)]).into_store(table)
}

fn source(servers: Vec<OptionsSource<PgConnectOptions>>) -> StoreSource {
    StoreSource::new("postgres", |settings| {
        let store = PostgresStore::new(servers, settings.table);
        Ok(Arc::new(store.transaction_idle_limit(settings.idle_limit)))
    })
}

impl From<PgPool> for StoreSource {
    fn from(pool: PgPool) -> Self {
        // It may be given other options later, such as a new password.
        let current = move || pool.connect_options().as_ref().clone();
        source(vec![OptionsSource::of(current)])
    }
}

impl From<&PgPool> for StoreSource {
    fn from(pool: &PgPool) -> Self {
        Self::from(pool.clone())
    }
}

impl StoreSource {
    /// A server whose password or address may change while the program runs: `options` is called each
    /// time a connection is opened. When it fails, the server counts as unreachable.
    ///
    /// A manager that is built from a pool follows `set_connect_options` of the pool, without this.
    ///
    /// ```no_run
    /// use dblock::{LockManager, StoreSource};
    /// # async fn token() -> Result<String, std::io::Error> { unimplemented!() }
    /// let source = StoreSource::postgres(|| async {
    ///     let options = sqlx::postgres::PgConnectOptions::new().host("db").username("app");
    ///     Ok::<_, std::io::Error>(options.password(&token().await?))
    /// });
    /// let builder = LockManager::builder(source);
    /// ```
    pub fn postgres<F, E>(options: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<PgConnectOptions, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        source(vec![OptionsSource::asked(options)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_may_name_several_servers() {
        let names = |url: &str| match servers(url) {
            Ok(servers) => servers.iter().map(|one| one.server().to_string()).collect(),
            Err(error) => vec![error.to_string()],
        };
        assert_eq!(
            names("postgres://u:a,b%40@one,two:7,[::1]:8/db?sslmode=disable"),
            ["one", "two:7", "[::1]:8"]
        );
        assert_eq!(names("postgres://one,two"), ["one", "two"]);
        // Without a second server there is nothing to name.
        for url in ["postgres://u:a,b@one/d,b", "postgres:///db?host=/run/a,b"] {
            assert_eq!(names(url), [""], "{url}");
        }
        for url in [
            "postgres://u:secret@one,/db",
            "postgres://u:secret@,one",
            "postgres://u:secret@one:x,two",
        ] {
            let said = names(url).concat();
            assert!(
                said.contains("postgres URL") && !said.contains("secret"),
                "{url}: {said}"
            );
        }
    }
}
