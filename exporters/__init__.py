"""The leaf package: the data model that all packages share, the spool and access to ClickHouse.

model.py         values shared by telemetry, quota_metrics and spark_jobs, named as in Kafka and OTLP
identity.py      names as they are stored, and who pays for a client
machine.py       cores and memory that this process may use, and how many threads fit
key_store.py     PKCS12 key and trust stores
environment_proxy.py the proxy that the environment has for a server
findings.py      what checks of a cluster or of a store find
printable.py     makes client-made text safe to print
self_metrics.py  catalogue of Headroom's own metrics
spool/           durable queue between the network processes and the storage process
otlp/            requests to an OTLP endpoint
clickhouse/      schema, connections, inserts, queries, the managed server
listening_socket.py  sockets that listen, and the addresses at their ends
text_table.py        lays a table out in plain lines of a given width
Imports no other package of this repository.
"""

import sys

# pip asks for it, but not whoever sends the packages to a Spark cluster as files.
if sys.hexversion < 0x030B0000:
    version = f"{sys.hexversion >> 24}.{sys.hexversion >> 16 & 255}"
    raise SystemExit(
        f"headroom: Python 3.11 or newer is needed, in Spark's driver and in its executors: {sys.executable} is"
        f" {version}; set spark.pyspark.python or PYSPARK_PYTHON"
    )
