"""Spark jobs over ClickHouse: which clients are throttled or near their quota, when they will be, and what to change.

    jobs/        one file per job: a pure `DataFrame -> DataFrame` core and a thin main
    transforms/  functions of DataFrames and columns that the jobs share: no I/O, no clock
    clickhouse/  how Spark reaches ClickHouse: data source, writer, SELECT texts and their schemas
    reports/     rows -> terminal table, HTML, JSON, Parquet
    cli          options and exit codes of the jobs, for `headroom job` and spark-submit
    session      the Spark session;  java  the version of a `java`;  class_archive, worker_daemon  for a cheaper start
    time_range   what a job looks at;  job_runs  the record of a run

In: tables of deploy/clickhouse. Out: quota_utilization and the other result tables, job_runs, reports. Of this
repository, imports exporters only.
"""
