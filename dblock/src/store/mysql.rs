//! Rows in MySQL 8 or MariaDB.
