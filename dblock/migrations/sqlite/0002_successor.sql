-- dblock's tables in a SQLite file, schema version 2: a row can name the lease that its release passes it on to.
-- Clients that were built for version 1 are refused from then on. To be run by hand once, as a whole:
--     sqlite3 -bail locks.db 'BEGIN IMMEDIATE' '.read 0002_successor.sql' 'COMMIT'
-- When it has been run already, its first statement fails with "duplicate column name" and nothing is done.

-- NULL while the row names nobody.
ALTER TABLE distributed_lock ADD COLUMN next_lease BLOB;
ALTER TABLE distributed_lock ADD COLUMN next_owner BLOB;
ALTER TABLE distributed_lock ADD COLUMN next_holder TEXT;
ALTER TABLE distributed_lock ADD COLUMN next_ttl INTEGER;
ALTER TABLE distributed_lock ADD COLUMN next_spare INTEGER;
ALTER TABLE distributed_lock ADD COLUMN next_since INTEGER;
ALTER TABLE distributed_lock ADD COLUMN next_until INTEGER;

UPDATE distributed_lock_version SET version = 2, min_client = 2 WHERE id = 1 AND version < 2;
