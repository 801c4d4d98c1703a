-- Schema version 2 of dblock for MySQL 8.0.1 or later and MariaDB 10.6 or later: a row can name the lease
-- that its release passes it on to. Clients that were built for version 1 are refused from then on.
--
-- dblock runs this script itself (`LockManager::migrate`). It can be run by hand instead, after the ones before
-- it, by a user who may alter the lock table, and as often as you like:
--
--     mysql --force my_database < 0002_successor.sql
--
-- MySQL cannot undo an ALTER. `--force` goes on where a former run has added the columns already, which the
-- server answers with "Duplicate column name". It fits other errors too, because the last statement fails unless
-- the columns are there.

-- NULL while the row names nobody. One statement, which the server carries out as a whole or not at all.
ALTER TABLE distributed_lock
    ADD COLUMN next_lease  BINARY(16)   NULL,
    ADD COLUMN next_owner  BINARY(16)   NULL,
    ADD COLUMN next_holder VARCHAR(255) CHARACTER SET utf8mb4 NULL,
    ADD COLUMN next_ttl    BIGINT       NULL,
    ADD COLUMN next_spare  BIGINT       NULL,
    ADD COLUMN next_since  BIGINT       NULL,
    ADD COLUMN next_until  BIGINT       NULL;

-- Last, so that the version never promises columns that are not there.
UPDATE distributed_lock_version SET version = 2, min_client = 2
    WHERE id = 1 AND version < 2 AND NOT EXISTS (SELECT next_until FROM distributed_lock WHERE FALSE);
