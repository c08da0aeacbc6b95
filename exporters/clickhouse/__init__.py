"""ClickHouse: connections, the schema (deploy/clickhouse/*.sql), inserts and queries, the server that Headroom runs.

connection.py  Endpoint: address, user and password; the only place that creates a client
errors.py      error codes: which of them the same rows cause each time
schema.py      migrations
store.py       Store: Arrow tables in, small results out; durable and deduplicated inserts
managed/       a ClickHouse server as a child process: program, configuration, users
In: Arrow tables and SQL. Out: rows, WriteErrors. Imports only exporters.model and the client library.
"""
