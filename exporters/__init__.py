"""The leaf: the model that all packages share, and where data goes.

model.py         values shared by telemetry, quota_metrics and spark_jobs (Kafka's and OTLP's words)
self_metrics.py  catalogue of Headroom's own metrics
spool/           durable hand-over between the network processes and the storage process
clickhouse/      schema, connections, inserts and queries
Imports none of the other packages.
"""
