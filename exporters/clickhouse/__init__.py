"""ClickHouse: the server, its schema (deploy/clickhouse/*.sql), connections, inserts and queries."""
