"""Spark jobs over ClickHouse: which client is throttled, or near its quota.

`quota_headroom` is the job; `tables` what it reads and writes, `clickhouse_source` how Spark reaches ClickHouse,
`limits` the eight levels of a client quota, `levels` the flag and its reason in words, `report` what people read.
"""
