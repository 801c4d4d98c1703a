-- The lock table of dblock for PostgreSQL 13 or later, and its version table.
--
-- `LockManager::migrate` runs this script in one transaction. By hand: psql -1 -f 0001_distributed_lock.sql
-- It changes nothing when run again. Times are µs since the Unix epoch on the server's clock.
--
-- A client needs SELECT, INSERT, UPDATE and DELETE on the first table and SELECT on the second.

-- There is no index but the key's: an update that touches an indexed column cannot be a heap-only one.
-- Half of each page stays free for the next versions of its rows, and vacuum comes early. It must not cut
-- the file, since that takes an exclusive lock on the table.
CREATE TABLE IF NOT EXISTS distributed_lock (
    lock_key        TEXT COLLATE "C" PRIMARY KEY,
    lock_owner      UUID    NOT NULL,
    reentrant_count INTEGER NOT NULL CHECK (reentrant_count >= 0),
    expire_at       BIGINT  NOT NULL,
    lease_id        UUID    NOT NULL,
    fence_token     BIGINT  NOT NULL,
    fence_ceiling   BIGINT  NOT NULL,
    wanted_until    BIGINT  NOT NULL DEFAULT 0,
    acquired_at     BIGINT  NOT NULL,
    holder          TEXT    NOT NULL,
    revoked         BOOLEAN NOT NULL DEFAULT false,
    reserved_for    UUID,
    reserved_until  BIGINT  NOT NULL DEFAULT 0,
    reserved_token  BIGINT  NOT NULL DEFAULT 0
) WITH (
    fillfactor = 50,
    vacuum_truncate = false,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);

-- One row: the schema's version, and the oldest version that a client may have been built for.
CREATE TABLE IF NOT EXISTS distributed_lock_version (
    only_row   BOOLEAN PRIMARY KEY DEFAULT true CHECK (only_row),
    version    INTEGER NOT NULL,
    min_client INTEGER NOT NULL
);

INSERT INTO distributed_lock_version AS found (version, min_client) VALUES (1, 1)
ON CONFLICT (only_row) DO UPDATE SET version = 1, min_client = 1 WHERE found.version < 1;
