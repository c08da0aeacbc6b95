"""Access to ClickHouse: over HTTP, in Arrow batches, from the driver and from Spark's Python workers.

`client` needs no Spark, `source` reads and writes DataFrames through it, `queries` has SELECT texts and schemas.

queries.py        queries of the jobs: SELECT texts and their result schemas
runs.py           a run of a job: recorded in job_runs, its staged rows published to quota_utilization
slices.py         splits a read in slices, each one Spark task and one ClickHouse query: of time, cluster, quota key
                  and clients
source.py         moves rows between ClickHouse and Spark, as Arrow batches over HTTP
worst_clients.py  what the report of quota-headroom reads of a run that has staged its rows: counts of all clients,
                  and the worst ones
"""
