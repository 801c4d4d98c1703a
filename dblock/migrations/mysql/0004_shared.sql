-- Schema version 4 of dblock for MySQL 8.0.1 or later and MariaDB 10.6 or later: a row can say who shares the lock. Older
-- programs keep working, with exclusive locks only.
--
-- dblock runs this script itself (`LockManager::migrate`). It can be run by hand instead, after the ones before
-- it, by a user who may alter the lock table, and as often as you like:
--
--     mysql --force my_database < 0004_shared.sql
--
-- `--force` goes on where a former run has added the column already, which the server answers with "Duplicate column
-- name". It fits other errors too, because the last statement fails unless the column is there.

-- JSON: the shared holds, with the lease_id that they belong to, and the limit of a successor that waits for one. NULL
-- while nobody shares the lock. TEXT would end at 64 KiB, some 200 holds.
ALTER TABLE distributed_lock ADD COLUMN shared MEDIUMTEXT CHARACTER SET utf8mb4 NULL;

-- Last, so that the version never promises a column that is not there.
UPDATE distributed_lock_version SET version = 4
    WHERE id = 1 AND version < 4 AND NOT EXISTS (SELECT shared FROM distributed_lock WHERE FALSE);
