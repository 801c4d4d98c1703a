-- Schema version 1 of dblock for MySQL 8.0.1 or later and MariaDB 10.6 or later.
--
-- dblock runs this script itself (`LockManager::migrate`). It can be run by hand instead, by a user who
-- may create tables, in the database that holds the locks, and as often as you like:
--
--     mysql my_database < 0001_distributed_lock.sql
--
-- The program then needs only SELECT, INSERT, UPDATE and DELETE on the two tables.

-- Times are microseconds since the Unix epoch. Keys are bytes: a text collation would fold case and
-- ignore trailing spaces, so that different keys shared a row. There is no other index: every acquire
-- and release would have to maintain it.
CREATE TABLE IF NOT EXISTS distributed_lock (
    lock_key        VARBINARY(255) NOT NULL PRIMARY KEY,
    lock_owner      BINARY(16)     NOT NULL,
    reentrant_count INT            NOT NULL,
    expire_at       BIGINT         NOT NULL,
    lease_id        BINARY(16)     NOT NULL,
    fence_token     BIGINT         NOT NULL,
    fence_ceiling   BIGINT         NOT NULL,
    wanted_until    BIGINT         NOT NULL,
    acquired_at     BIGINT         NOT NULL,
    holder          VARCHAR(255)   CHARACTER SET utf8mb4 NOT NULL,
    revoked         BOOLEAN        NOT NULL
) ENGINE = InnoDB;

-- One row: the version of this schema, and the oldest schema version that a client may be built for.
CREATE TABLE IF NOT EXISTS distributed_lock_version (
    id         TINYINT NOT NULL PRIMARY KEY,
    version    INT     NOT NULL,
    min_client INT     NOT NULL
) ENGINE = InnoDB;

-- Last, so that the version never promises a table that is not there.
INSERT IGNORE INTO distributed_lock_version (id, version, min_client) VALUES (1, 1, 1);
