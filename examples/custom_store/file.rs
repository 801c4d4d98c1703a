//! The file: one process at a time, read whole, written whole.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::SystemTime;

use dblock::store::{StoreError, StoreErrorKind};

use super::table::Table;

/// The result of the work on the table.
pub(super) enum Change<T> {
    /// The table is as it was.
    Nothing(T),
    /// The table must be written before anybody hears of it.
    Write(T),
}

/// Works on the table while no other process does.
///
/// The lock is on a file of its own, because the table's is replaced by each write: whoever reads it sees all
/// of a write or nothing. The system takes the lock from a process that dies.
pub(super) fn with_table<T>(
    path: &Path,
    work: impl FnOnce(&mut Table) -> Change<T>,
) -> Result<T, StoreError> {
    let lock = File::create(path.with_extension("lock")).map_err(nothing_done)?;
    // Waits for no longer than the others' calls take: nobody keeps it between two calls.
    lock.lock().map_err(nothing_done)?;
    let mut table = read(path).map_err(nothing_done)?;
    table.tick(wall_clock());
    match work(&mut table) {
        Change::Nothing(answer) => Ok(answer),
        Change::Write(answer) => {
            write(path, &table)?;
            Ok(answer)
        }
    }
}

fn read(path: &Path) -> io::Result<Table> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Table::default()),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, table: &Table) -> Result<(), StoreError> {
    let new = path.with_extension("new");
    let prepare = || -> io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(table)?)?;
        // A grant that a power cut takes back would let a second owner in.
        file.sync_all()
    };
    prepare().map_err(nothing_done)?;
    // From here on nobody knows, should it fail.
    fs::rename(&new, path).map_err(|error| {
        StoreError::new(StoreErrorKind::Interrupted, "the lock file could not be replaced").with_source(error)
    })
}

/// The failure of a call that has changed nothing.
fn nothing_done(error: io::Error) -> StoreError {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StoreErrorKind::Refused,
        io::ErrorKind::InvalidData => StoreErrorKind::Schema,
        _ => StoreErrorKind::Unreachable,
    };
    StoreError::new(
        kind,
        "the lock file cannot be used; see that its folder is there and can be written",
    )
    .with_source(error)
}

/// µs since the Unix epoch.
fn wall_clock() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
