"""Spark jobs over ClickHouse: which client is throttled or near its quota, when it will be, and what to change.

    jobs/        one file per job: a pure `DataFrame -> DataFrame` core and a thin main
    transforms/  what the jobs share, functions of DataFrames and columns: no I/O, no clock
    clickhouse/  how Spark reaches ClickHouse: data source, writer, SELECT texts and their schemas
    reports/     rows -> terminal table, HTML, JSON, Parquet
    cli          options and exit codes of the jobs, for `headroom job` and spark-submit
    session      the Spark session;  java  the version of a `java`
    time_range   what a job looks at;  job_runs  the record of a run

In: tables of deploy/clickhouse. Out: quota_utilization and the other tables of results, job_runs, reports.
Imports exporters and nothing else of this repository.
"""
