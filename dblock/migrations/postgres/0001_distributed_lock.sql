-- The lock table of dblock for PostgreSQL 13 or later, and its version table.
--
-- `LockManager::migrate` runs this script in one transaction. By hand: psql -1 -f 0001_distributed_lock.sql
-- It makes the tables or upgrades those of an earlier version, and changes nothing when run again. Times are µs since the Unix epoch on the server's clock.
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
    next_lease      UUID,
    next_owner      UUID,
    next_holder     TEXT,
    next_ttl        BIGINT,
    next_spare      BIGINT,
    next_since      BIGINT,
    next_until      BIGINT  NOT NULL DEFAULT 0
) WITH (
    fillfactor = 50,
    vacuum_truncate = false,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);

-- What version 1 had instead. An exclusive lock on the table, for a moment: no row is rewritten.
ALTER TABLE distributed_lock
    DROP COLUMN IF EXISTS reserved_for,
    DROP COLUMN IF EXISTS reserved_until,
    DROP COLUMN IF EXISTS reserved_token,
    ADD COLUMN IF NOT EXISTS next_lease  UUID,
    ADD COLUMN IF NOT EXISTS next_owner  UUID,
    ADD COLUMN IF NOT EXISTS next_holder TEXT,
    ADD COLUMN IF NOT EXISTS next_ttl    BIGINT,
    ADD COLUMN IF NOT EXISTS next_spare  BIGINT,
    ADD COLUMN IF NOT EXISTS next_since  BIGINT,
    ADD COLUMN IF NOT EXISTS next_until  BIGINT NOT NULL DEFAULT 0;

-- One row: the schema's version, and the oldest version that a client may have been built for.
CREATE TABLE IF NOT EXISTS distributed_lock_version (
    only_row   BOOLEAN PRIMARY KEY DEFAULT true CHECK (only_row),
    version    INTEGER NOT NULL,
    min_client INTEGER NOT NULL
);

INSERT INTO distributed_lock_version AS found (version, min_client) VALUES (2, 2)
ON CONFLICT (only_row) DO UPDATE SET version = 2, min_client = 2 WHERE found.version < 2;
