-- dblock's tables in a SQLite file, schema version 1. May be run again, and run by hand:
--     sqlite3 locks.db < 0001_distributed_lock.sql
-- Times are microseconds since the Unix epoch; ids are UUIDs of 16 bytes.

CREATE TABLE IF NOT EXISTS distributed_lock (
    -- Compared byte by byte: 'a', 'A' and 'a ' are three keys.
    lock_key        TEXT    NOT NULL COLLATE BINARY PRIMARY KEY,
    lock_owner      BLOB    NOT NULL,
    -- How many holds the owner has; 0 is free. Rows stay after a release.
    reentrant_count INTEGER NOT NULL,
    expire_at       INTEGER NOT NULL,
    lease_id        BLOB    NOT NULL,
    fence_token     INTEGER NOT NULL,
    -- The largest token that anyone may have been given.
    fence_ceiling   INTEGER NOT NULL,
    -- Until when somebody said to wait for the key; 0 for nobody.
    wanted_until    INTEGER NOT NULL,
    acquired_at     INTEGER NOT NULL,
    holder          TEXT    NOT NULL,
    revoked         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS distributed_lock_version (
    -- One row only.
    id         INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    version    INTEGER NOT NULL,
    -- The oldest schema version that a client may have been built for.
    min_client INTEGER NOT NULL
) STRICT;

INSERT INTO distributed_lock_version (id, version, min_client) VALUES (1, 1, 1) ON CONFLICT DO NOTHING;
