"""Access to ClickHouse: over HTTP, in Arrow batches, from the driver and from Spark's Python workers.

`client` needs no Spark, `source` reads and writes DataFrames through it, `queries` has SELECT texts and schemas.
"""
