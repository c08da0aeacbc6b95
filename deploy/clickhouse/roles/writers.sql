-- The storage worker: creates and upgrades the schema, writes all tables but those of the jobs, reads for rollups.
-- CREATE USER somebody IDENTIFIED ... DEFAULT ROLE headroom_writers SETTINGS PROFILE 'headroom_writers' makes a user of it.

CREATE ROLE IF NOT EXISTS headroom_writers;

GRANT SELECT, INSERT, CREATE DATABASE, CREATE TABLE, CREATE VIEW, ALTER TABLE, ALTER VIEW, DROP TABLE, DROP VIEW
    ON headroom.* TO headroom_writers;

-- Who applies migrations at this moment; which replicas are behind.
GRANT SELECT ON system.processes TO headroom_writers;
GRANT SELECT ON system.replicas TO headroom_writers;
-- How many shards a Replicated database has.
GRANT SELECT ON system.clusters TO headroom_writers;

GRANT TABLE ENGINE ON MergeTree, TABLE ENGINE ON ReplacingMergeTree, TABLE ENGINE ON AggregatingMergeTree,
    TABLE ENGINE ON Memory TO headroom_writers;

-- Only a cluster needs what follows.
GRANT TABLE ENGINE ON ReplicatedMergeTree, TABLE ENGINE ON ReplicatedReplacingMergeTree,
    TABLE ENGINE ON ReplicatedAggregatingMergeTree, TABLE ENGINE ON Distributed TO headroom_writers;
GRANT CLUSTER, REMOTE ON *.* TO headroom_writers;

CREATE SETTINGS PROFILE IF NOT EXISTS headroom_writers
    SETTINGS session_timezone = 'UTC', max_partitions_per_insert_block = 1000;
