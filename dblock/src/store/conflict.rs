//! Conflicts of a user's transaction with another one.

use sqlx::error::DatabaseError;

/// Whether the answer is a conflict of the user's transaction with another one, by the database that it is from.
pub(crate) fn is_conflict(answer: &dyn DatabaseError) -> bool {
    let databases: [fn(&dyn DatabaseError) -> bool; _] = [
        #[cfg(feature = "postgres")]
        super::postgres::is_conflict,
        #[cfg(feature = "mysql")]
        super::mysql::is_conflict,
        #[cfg(feature = "sqlite")]
        super::sqlite::is_conflict,
    ];
    databases.iter().any(|is_conflict| is_conflict(answer))
}
