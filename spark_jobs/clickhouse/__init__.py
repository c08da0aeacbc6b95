"""ClickHouse as the jobs reach it: over HTTP, in Arrow batches, from the driver and from Spark's Python workers.

`client` is a connection without Spark, `source` Spark's data source over it, `queries` the SELECT texts and schemas.
"""
