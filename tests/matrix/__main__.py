"""`python -m tests.matrix [BROKER ...]`: all releases and clients, or the brokers named; all of them write the table of
README.md; `go` builds a program with librdkafka 1.9. Exits 1 when a cell does not work."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from headroom.demo.admin import Admin
from headroom.demo.jars import KAFKA_VERSION, find_java
from tests.matrix.cells import faults, served_release
from tests.matrix.clients import JAVA, LIMIT, Client, JavaClient, LibrdkafkaClient, OldLibrdkafkaClient
from tests.matrix.releases import BROKERS, has_client_metrics

_CACHE = Path(".cache")
_README = Path("README.md")
_BEGIN, _END = "<!-- written by make matrix -->\n", "<!-- end -->\n"

Cells = Mapping[tuple[str, str], Sequence[str]]  # the faults of a broker's release and a client


def main(releases: Sequence[str]) -> int:
    java, cells = find_java(), dict[tuple[str, str], Sequence[str]]()
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
                    clients.append(
                        stack.enter_context(OldLibrdkafkaClient(go, set_quota, directory / "librdkafka-1.9"))
                    )
                for client in clients:
                    cells[release, client.name] = faults(at, client)
                    print(f"Kafka {release}, {client.name}: {_cell(client, cells[release, client.name])}", flush=True)
    if not shutil.which("go"):
        print("no `go`: without the column of librdkafka 1.9")
    elif tuple(releases) == BROKERS:
        _write(_table(clients, cells))
    return int(any(cells.values()))


def _cell(client: Client, found: Sequence[str]) -> str:
    if found:
        return found[0]
    return "works, telemetry" if client.pushes else "works"


def _table(clients: Sequence[Client], cells: Cells) -> str:
    heads = ["brokers", *(client.name for client in clients), "subscriptions"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for release in BROKERS:
        of_clients = [_cell(client, cells[release, client.name]) for client in clients]
        where = "in the cluster" if has_client_metrics(release) else "in a file"
        lines.append("| " + " | ".join([release, *of_clients, where]) + " |")
    return "\n".join((*lines, ""))


def _write(table: str) -> None:
    before, _, rest = _README.read_text().partition(_BEGIN)
    _README.write_text(before + _BEGIN + table + _END + rest.partition(_END)[2])


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or BROKERS))
