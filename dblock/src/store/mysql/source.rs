//! From a URL, a pool or a function to MySQL or MariaDB.

use std::sync::Arc;

use sqlx::MySqlPool;
use sqlx::mysql::MySqlConnectOptions;

use super::MySqlStore;
use crate::LockError;
use crate::store::Store;
use crate::store::connect_options::OptionsSource;
use crate::store::source::StoreSource;
use crate::store::url;

/// The parameters of a URL that are about TLS, as the driver knows them.
const TLS: [&str; 8] = [
    "sslmode", "ssl-mode", "sslca", "ssl-ca", "sslcert", "ssl-cert", "sslkey", "ssl-key",
];

pub(crate) fn from_url(url: &str) -> Result<StoreSource, LockError> {
    servers(url).map(source)
}

fn servers(url: &str) -> Result<Vec<OptionsSource<MySqlConnectOptions>>, LockError> {
    // The driver does not know the scheme `mariadb`.
    let rest = url.split_once(':').map_or("", |(_, rest)| rest);
    url::check_tls("mysql", url, &TLS)?;
    url::servers("mysql", &format!("mysql:{rest}"))
}

/// A store in the database of `options`, for the project's own tests. Opens nothing yet.
///
/// # Errors
/// As [`StoreSource::into_store`].
pub fn open(options: MySqlConnectOptions, table: &str) -> Result<Arc<dyn Store>, LockError> {
    source(vec![OptionsSource::fixed(options)]).into_store(table)
}

fn source(servers: Vec<OptionsSource<MySqlConnectOptions>>) -> StoreSource {
    StoreSource::new("mysql", |settings| {
        Ok(Arc::new(MySqlStore::new(
            servers,
            settings.table,
            settings.any_server,
        )))
    })
}

impl From<MySqlPool> for StoreSource {
    fn from(pool: MySqlPool) -> Self {
        // It may be given other options later, such as a new password.
        let current = move || pool.connect_options().as_ref().clone();
        source(vec![OptionsSource::of(current)])
    }
}

impl From<&MySqlPool> for StoreSource {
    fn from(pool: &MySqlPool) -> Self {
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
    /// let source = StoreSource::mysql(|| async {
    ///     let options = sqlx::mysql::MySqlConnectOptions::new().host("db").username("app").database("app");
    ///     Ok::<_, std::io::Error>(options.password(&token().await?))
    /// });
    /// let builder = LockManager::builder(source);
    /// ```
    pub fn mysql<F, E>(options: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<MySqlConnectOptions, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        source(vec![OptionsSource::asked(options)])
    }
}
