-- dblock's tables in a SQLite file, schema version 4: a row can say who shares the lock. Older programs keep working, with
-- exclusive locks only. To be run by hand once, as a whole, after the ones before it:
--     sqlite3 -bail locks.db 'BEGIN IMMEDIATE' '.read 0004_shared.sql' 'COMMIT'
-- When it has been run already, its first statement fails with "duplicate column name" and nothing is done.

-- JSON: the shared holds, with the lease_id that they belong to, and the limit of a successor that waits for one. NULL
-- while nobody shares the lock.
ALTER TABLE distributed_lock ADD COLUMN shared TEXT;

UPDATE distributed_lock_version SET version = 4 WHERE id = 1 AND version < 4;
