-- Schema version 3 of dblock for MySQL 8.0.1 or later and MariaDB 10.6 or later: the table of records, which
-- `run_once` needs. The lock table stays as it is, and older programs keep working.
--
-- dblock runs this script itself (`LockManager::migrate`). It can be run by hand instead, after the ones before
-- it, by a user who may create tables, and as often as you like:
--
--     mysql my_database < 0003_record.sql
--
-- A program that uses `run_once` then needs SELECT, INSERT, UPDATE and DELETE on this table too.

-- Times are microseconds since the Unix epoch. The state is processing, succeeded or failed. The result is JSON.
-- A record is deleted some time after `keep_until`, unless it is processing.
CREATE TABLE IF NOT EXISTS distributed_lock_record (
    record_key  VARBINARY(255) NOT NULL PRIMARY KEY,
    state       VARCHAR(16)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempts    INT            NOT NULL,
    fence_token BIGINT         NOT NULL,
    fingerprint BINARY(16)     NULL,
    result      MEDIUMTEXT     CHARACTER SET utf8mb4 NULL,
    error       TEXT           CHARACTER SET utf8mb4 NULL,
    holder      VARCHAR(255)   CHARACTER SET utf8mb4 NOT NULL,
    started_at  BIGINT         NOT NULL,
    finished_at BIGINT         NOT NULL,
    keep_until  BIGINT         NOT NULL
) ENGINE = InnoDB;

-- Last, so that the version never promises a table that is not there.
UPDATE distributed_lock_version SET version = 3 WHERE id = 1 AND version < 3;
