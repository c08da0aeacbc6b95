"""The leaf: the words all parts share, and the places data goes.

model.py      what is handed around: connections, pushes, usage, limits; the precedence of quotas
records.py    those words as bytes in the spool (sans-I/O)
spool.py      the durable hand-over from network processes to the storage worker: writing
spool_reader.py  the same: reading, in frozen batches; followed_segment.py one segment of it
segments.py   the spool's records as bytes (sans-I/O)
schema.py     applies deploy/clickhouse/*.sql
clickhouse.py one store for the embedded engine and a server: rows in, SQL out
sql_door.py   ClickHouse-HTTP in front of the embedded engine

Nothing here imports telemetry, quota_metrics, spark_jobs or headroom.
"""
