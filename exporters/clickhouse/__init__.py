"""ClickHouse: connections, the schema (deploy/clickhouse/schema), inserts and queries, the server that Headroom runs.

client.py          ClickHouse: every statement passes it; which node is asked, how often, what an error says
connection.py      Endpoint: address, user and password; the environment's proxy, but none for what Headroom runs;
                   StoreOptions: cluster, quorum, compression, retention
profile.py         what a user's profile has to let our statements have; refuses one that cannot work
connection_pool.py HTTP connections by that proxy; a redirect is an error
server_checks.py   tokens, results that break off, several servers behind one address: before the first row
ping.py            whether a server is there at all
errors.py          error codes: which of them are permanent for the same rows
schema.py          migrations: the SQL files, and values of Python in them
migrate.py         applies migrations and retention, one process at a time
cluster.py         the same SQL for a cluster: Replicated engines, Distributed tables on top
store.py           Store: durable, deduplicated inserts of Arrow tables; small query results
managed/           a ClickHouse server as a child process: program, configuration, users
In: Arrow tables and SQL. Out: rows, WriteErrors.
"""
