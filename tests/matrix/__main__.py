"""`python -m tests.matrix [BROKER ...]`: all releases and clients, or the brokers named; all of them write the table of
README.md; `go` builds a program with librdkafka 1.9. Exits 1 when a cell does not work."""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from headroom.demo.jars import KAFKA_VERSION, find_java
from headroom.demo.jvm import Admin
from tests.matrix.cells import (
    JAVA,
    LIMIT,
    Client,
    JavaClient,
    LibrdkafkaClient,
    OldLibrdkafkaClient,
    faults,
    served_release,
)
from tests.matrix.page_table import write_cells
from tests.matrix.releases import BROKERS, has_client_metrics

_CACHE = Path(".cache")
_README = Path("README.md")


def main(releases: Sequence[str]) -> int:
    java, cells = find_java(), dict[tuple[str, str], str]()
    failed: list[str] = []
    with ExitStack() as stack:
        of_java = [stack.enter_context(JavaClient(java, release, _CACHE)) for release in JAVA]
        jvm = next(client.jvm for client in of_java if client.name.endswith(KAFKA_VERSION))
        clients: list[Client] = []
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headroom-matrix-")))
        for release in releases:
            with served_release(java, release, _CACHE, directory / release, jvm) as at, Admin(jvm, at.broker) as admin:

                def set_quota(client_id: str, admin: Admin = admin) -> None:
                    admin.alter_quota({"client-id": client_id}, {"producer_byte_rate": float(LIMIT)})

                clients = [*of_java, LibrdkafkaClient(set_quota)]
                if go := shutil.which("go"):
                    clients.append(OldLibrdkafkaClient(go, set_quota, directory / "librdkafka-1.9"))
                cells[release, "subscriptions"] = "in the cluster" if has_client_metrics(release) else "in a file"
                for client in clients:
                    works = "works, telemetry" if client.pushes else "works"
                    cell = cells[release, client.name] = next(iter(faults(at, client)), works)
                    print(f"Kafka {release}, {client.name}: {cell}", flush=True)
                    failed += [client.name] * (cell != works)
    if not shutil.which("go"):
        print("no `go`: without the column of librdkafka 1.9")
    elif tuple(releases) == BROKERS:
        write_cells(_README, ("brokers", *(client.name for client in clients), "subscriptions"), BROKERS, cells)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or BROKERS))
