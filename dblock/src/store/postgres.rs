//! Rows in PostgreSQL.
