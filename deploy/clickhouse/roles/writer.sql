-- The storage worker: creates and upgrades the schema, writes all tables but those of the jobs, reads for rollups.
-- CREATE USER ... DEFAULT ROLE headroom_writer SETTINGS PROFILE 'headroom_writer' makes a user of it.

CREATE ROLE IF NOT EXISTS headroom_writer;

GRANT SELECT, INSERT, CREATE DATABASE, CREATE TABLE, CREATE VIEW, ALTER TABLE, ALTER VIEW, DROP TABLE, DROP VIEW
    ON headroom.* TO headroom_writer;

-- Who applies migrations at this moment; which replicas are behind.
GRANT SELECT ON system.processes TO headroom_writer;
GRANT SELECT ON system.replicas TO headroom_writer;

GRANT TABLE ENGINE ON MergeTree, TABLE ENGINE ON ReplacingMergeTree, TABLE ENGINE ON AggregatingMergeTree,
    TABLE ENGINE ON Memory TO headroom_writer;

-- Only a cluster needs what follows.
GRANT TABLE ENGINE ON ReplicatedMergeTree, TABLE ENGINE ON ReplicatedReplacingMergeTree,
    TABLE ENGINE ON ReplicatedAggregatingMergeTree, TABLE ENGINE ON Distributed TO headroom_writer;
GRANT CLUSTER, REMOTE ON *.* TO headroom_writer;

CREATE SETTINGS PROFILE IF NOT EXISTS headroom_writer
    SETTINGS session_timezone = 'UTC', max_partitions_per_insert_block = 1000;
