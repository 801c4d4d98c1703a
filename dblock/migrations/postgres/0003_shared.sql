-- The column of dblock for PostgreSQL 13 or later which shared and limited locks need: schema version 4. Older programs keep
-- working, with exclusive locks only.
--
-- `LockManager::migrate` runs this script in one transaction, after the ones before it. By hand:
-- psql -1 -f 0003_shared.sql. It changes nothing when run again.

-- JSON: the shared holds, with the lease_id that they belong to, and the limit of a successor that waits for one. NULL while
-- nobody shares the lock. An exclusive lock on the table, for a moment: no row is rewritten.
ALTER TABLE distributed_lock ADD COLUMN IF NOT EXISTS shared TEXT;

UPDATE distributed_lock_version SET version = 4 WHERE version < 4;
