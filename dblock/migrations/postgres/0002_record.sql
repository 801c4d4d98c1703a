-- The table of records of dblock for PostgreSQL 13 or later, which `run_once` needs: schema version 3. The lock table
-- stays as it is, and older programs keep working.
--
-- `LockManager::migrate` runs this script in one transaction, after the one before it. By hand:
-- psql -1 -f 0002_record.sql. It changes nothing when run again. Times are µs since the Unix epoch on the server's clock.
--
-- A client that uses `run_once` needs SELECT, INSERT, UPDATE and DELETE on this table too.

CREATE TABLE IF NOT EXISTS distributed_lock_record (
    record_key  TEXT COLLATE "C" PRIMARY KEY,
    -- processing, succeeded or failed.
    state       TEXT COLLATE "C" NOT NULL,
    -- How many attempts have begun.
    attempts    INTEGER NOT NULL,
    -- The token of the lease under which the last one began.
    fence_token BIGINT  NOT NULL,
    -- A hash of the argument, to tell this work from other work.
    fingerprint UUID,
    -- JSON.
    result      TEXT,
    error       TEXT,
    -- Host, process and function.
    holder      TEXT    NOT NULL,
    started_at  BIGINT  NOT NULL,
    -- 0 while it is processing.
    finished_at BIGINT  NOT NULL,
    -- The record is deleted some time after this, unless it is processing.
    keep_until  BIGINT  NOT NULL
) WITH (
    fillfactor = 80,
    vacuum_truncate = false
);

UPDATE distributed_lock_version SET version = 3 WHERE version < 3;
