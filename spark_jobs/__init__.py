"""Spark jobs over ClickHouse: which clients are throttled or near their quota, when they will be, and what to change.

    jobs/        one file per job: a pure `DataFrame -> DataFrame` core and a thin main
    transforms/  functions of DataFrames and columns: no I/O, no clock
    clickhouse/  how Spark reaches ClickHouse: slices, reader, writer, publication, SELECT texts and schemas
    reports/     rows -> terminal table, HTML, JSON, Parquet
    options.py        the options of each job, which are the flags of its command
    cli.py            the jobs as commands, for `headroom job` and for spark-submit; their exit codes
    session.py        Spark on this machine
    worker_daemon.py  the daemon of its Python workers: it imports what each worker needs before it forks them
    time_range.py     what a job looks at

In: tables of deploy/clickhouse. Out: quota_utilization and the other result tables, job_runs, reports.
"""

import exporters  # noqa: F401 - first: it refuses an old Python by name
