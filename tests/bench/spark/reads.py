"""Rows from ClickHouse into Spark: our `read` (mapInArrow) beside Spark's own JDBC source with ClickHouse's driver.

    python -m tests.bench.spark.reads [ROWS]

The same columns of the same rows, in as many partitions, each in a process of its own. What is compared is the CPU time
of the process with its JVM and Python workers, and of the server, beyond that of the same process over no rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from exporters.clickhouse.connection import PASSWORD, password_of
from headroom.demo.jars import fetch_once, find_java
from spark_jobs.clickhouse.queries import schema
from spark_jobs.clickhouse.source import clickhouse_of, read
from spark_jobs.session import session
from tests.bench.figure import tell
from tests.bench.spark_jobs import CLIENTS, Descendants, cpu_s, fill, spent_s
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

ROWS, CLUSTER, PARTS = 1_000_000, "reads", 4
DRIVER: Final = "0.9.2"
CACHE = Path(".cache") / f"clickhouse-jdbc-{DRIVER}"
_IVY = f"""<ivy-module version="2.0">
  <info organisation="headroom" module="clickhouse-jdbc"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->default(runtime)">
    <dependency org="com.clickhouse" name="clickhouse-jdbc" rev="{DRIVER}">
      <artifact name="clickhouse-jdbc" type="jar" ext="jar" conf="default" m:classifier="all"
                xmlns:m="http://ant.apache.org/ivy/maven"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
_SCHEMA = schema(
    user=T.StringType,
    client_id=T.StringType,
    broker_id=T.IntegerType,
    at_ms=T.LongType,
    rate=T.DoubleType,
    throttle_ms=T.DoubleType,
    matched_entity=T.StringType,
    quota=T.DoubleType,
)
_ROWS = f"""
SELECT toString(u.user) AS user, toString(u.client_id) AS client_id, broker_id, toUnixTimestamp64Milli(ts) AS at_ms,
       rate, throttle_ms, toString(u.matched_entity) AS matched_entity, `limit` AS quota,
       toInt32(intHash32(toUnixTimestamp(ts)) % {PARTS}) AS part
FROM headroom.quota_usage AS u"""


def by_arrow(spark: SparkSession, url: str, cluster: str) -> None:
    query = f"SELECT * EXCEPT part FROM ({_ROWS} WHERE cluster = {{cluster:String}}) WHERE part = {{part:Int32}}"
    parts = [{"cluster": cluster, "part": part} for part in range(PARTS)]
    read(spark, clickhouse_of(url, password_of(os.environ)), query, _SCHEMA, parts).write.format("noop").mode(
        "overwrite"
    ).save()


def by_jdbc(spark: SparkSession, url: str, cluster: str) -> None:
    server = clickhouse_of(url, password_of(os.environ)).current
    options = {
        "url": f"jdbc:clickhouse://{server.host}:{server.port}/headroom",
        "driver": "com.clickhouse.jdbc.ClickHouseDriver",
        "user": server.user,
        "password": server.password,
        "dbtable": f"({_ROWS} WHERE cluster = '{cluster}') AS parts",
        "partitionColumn": "part",
        "lowerBound": "0",
        "upperBound": str(PARTS),
        "numPartitions": str(PARTS),
        "fetchsize": "100000",
    }
    spark.read.format("jdbc").options(**options).load().drop("part").write.format("noop").mode("overwrite").save()


def reads(kind: str, url: str, cluster: str) -> None:
    """In the process that is measured."""
    with session("reads", "local[2]") as spark:
        {"arrow": by_arrow, "jdbc": by_jdbc}[kind](spark, url, cluster)


def measured(clickhouse: RunningClickHouse, kind: str, cluster: str, jars: Path) -> float:
    """CPU-seconds of one read in a process of its own, and of the server."""
    before = cpu_s(clickhouse) + spent_s()
    environment = {**os.environ, PASSWORD: clickhouse.server.password}
    if kind == "jdbc":
        environment["SPARK_DIST_CLASSPATH"] = f"{jars}/*"
    command = [sys.executable, "-m", "tests.bench.spark.reads", kind, clickhouse.writer.url, cluster]
    with Descendants(os.getpid()) as descendants:
        subprocess.run(command, check=True, env=environment)
    return cpu_s(clickhouse) + spent_s() + descendants.workers_s - before


def main(rows: int) -> None:
    jars = (CACHE / "libs").absolute()
    fetch_once(find_java(), jars, _IVY, lambda text: print(text, file=sys.stderr), "ClickHouse's JDBC driver")
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory)) as clickhouse:
        fill(clickhouse, CLUSTER, rows, CLIENTS)
        spent = {
            kind: measured(clickhouse, kind, CLUSTER, jars) - measured(clickhouse, kind, "none", jars)
            for kind in ("jdbc", "arrow")
        }
    name = f"spark_read_{rows // 1000}k_rows"
    tell(name, spent["arrow"], "cpu_s", spent["arrow"] / max(spent["jdbc"], 0.01), f"jdbc:{spent['jdbc']:.1f}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        reads(*sys.argv[1:4])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
