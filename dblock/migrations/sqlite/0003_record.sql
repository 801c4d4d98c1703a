-- dblock's tables in a SQLite file, schema version 3: the table of records, which `run_once` needs. The lock table stays
-- as it is, and older programs keep working. May be run again, and run by hand:
--     sqlite3 -bail locks.db 'BEGIN IMMEDIATE' '.read 0003_record.sql' 'COMMIT'

CREATE TABLE IF NOT EXISTS distributed_lock_record (
    record_key  TEXT    NOT NULL COLLATE BINARY PRIMARY KEY,
    -- processing, succeeded or failed.
    state       TEXT    NOT NULL,
    -- How many attempts have begun.
    attempts    INTEGER NOT NULL,
    -- The token of the lease under which the last one began.
    fence_token INTEGER NOT NULL,
    -- A hash of the argument, to tell this work from other work.
    fingerprint BLOB,
    -- JSON.
    result      TEXT,
    error       TEXT,
    -- Host, process and function.
    holder      TEXT    NOT NULL,
    started_at  INTEGER NOT NULL,
    -- 0 while it is processing.
    finished_at INTEGER NOT NULL,
    -- The record is deleted some time after this, unless it is processing.
    keep_until  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

UPDATE distributed_lock_version SET version = 3 WHERE id = 1 AND version < 3;
