//! From a URL or a pool to a SQLite file.

use std::sync::Arc;

use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

use super::SqliteStore;
use crate::LockError;
use crate::store::Store;
use crate::store::source::StoreSource;

/// The file is created, and the tables with it.
pub(crate) fn from_url(url: &str) -> Result<StoreSource, LockError> {
    let options = url.parse::<SqliteConnectOptions>();
    let mut options =
        options.map_err(|error| LockError::invalid(format!("the sqlite URL cannot be read: {error}")))?;
    if !url.contains("mode=") {
        options = options.create_if_missing(true);
    }
    let mut source = source(options);
    source.makes_tables = true;
    Ok(source)
}

/// A store in the file of `options`, for the project's own tests. Opens nothing yet.
///
/// # Errors
/// As [`StoreSource::into_store`].
pub fn open(options: SqliteConnectOptions, table: &str) -> Result<Arc<dyn Store>, LockError> {
    source(options).into_store(table)
}

fn source(options: SqliteConnectOptions) -> StoreSource {
    StoreSource::new("sqlite", |settings| {
        SqliteStore::check_options(&options, &settings.table).map_err(LockError::invalid)?;
        Ok(Arc::new(SqliteStore::new(options, settings.table)))
    })
}

impl From<SqlitePool> for StoreSource {
    fn from(pool: SqlitePool) -> Self {
        Self::from(&pool)
    }
}

impl From<&SqlitePool> for StoreSource {
    fn from(pool: &SqlitePool) -> Self {
        source(pool.connect_options().as_ref().clone())
    }
}
