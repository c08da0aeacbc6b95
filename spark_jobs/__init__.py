"""Spark jobs over ClickHouse: which clients are throttled or near their quota, when they will be, and what to change.

    jobs/        one file per job: a pure `DataFrame -> DataFrame` core and a thin main
    transforms/  functions of DataFrames and columns: no I/O, no clock; verdicts.py joins and folds windows
    clickhouse/  how Spark reaches ClickHouse: slices, reader, writer, publication, SELECT texts and schemas
    reports/     rows -> terminal table, HTML, JSON, Parquet
    options      the options of each job, which are the flags of its command;  cli  the commands and their exit codes
    session      Spark on this machine;  worker_daemon  the daemon of its Python workers
    arrow        rows of Spark as Arrow tables;  executors  what their Python lacks, in one sentence
    time_range   what a job looks at;  job_runs  the record of a run

In: tables of deploy/clickhouse. Out: quota_utilization and the other result tables, job_runs, reports.
"""

import exporters  # noqa: F401 - first: it refuses an old Python by name
