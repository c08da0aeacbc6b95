"""One cell of the matrix: a client of one release through `headroom serve` before a broker of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from headroom.demo.admin import Admin
from headroom.demo.jvm import Jvm
from tests.kit.serving import Served, config_file, eventually, rows
from tests.matrix.clients import LIMIT, RECORDS, Client, new_name
from tests.matrix.releases import ReleaseCluster, has_client_metrics, release_libs

CLUSTER = "matrix"


class ServedRelease(NamedTuple):
    """A broker of a release and the Headroom before it."""

    release: str
    broker: str
    served: Served


@contextmanager
def served_release(java: str, release: str, cache: Path, directory: Path, jvm: Jvm) -> Iterator[ServedRelease]:
    """`jvm`: of the current release, whose Admin sets the subscription where brokers have CLIENT_METRICS; a file does
    before."""
    directory.mkdir(parents=True)
    arguments = ["--cluster", CLUSTER]
    with ExitStack() as stack:
        cluster = stack.enter_context(ReleaseCluster(java, release, release_libs(java, release, cache)))
        if has_client_metrics(release):
            admin = stack.enter_context(Admin(jvm, cluster.bootstrap))
            admin.set_subscription("each-second", "*", 1_000)
        else:
            arguments += config_file(directory, push_ms=1000)
        served = stack.enter_context(Served(directory, "--upstream", cluster.bootstrap, *arguments))
        yield ServedRelease(release, cluster.bootstrap, served)


def faults(at: ServedRelease, client: Client) -> list[str]:
    """What does not work; nothing is tried after the first one that fails."""
    topic = new_name(at.release)
    kafka, sql = at.served.kafka, at.served.sql
    steps: list[tuple[str, Callable[[], object]]] = [
        ("administration", lambda: client.administers(kafka, topic)),
        ("produce", lambda: client.produces(kafka, topic, f"{topic}-p")),
        ("transaction", lambda: client.produces(kafka, topic, f"{topic}-t", transactional_id=topic)),
        ("consume", lambda: _consumes(client, at, topic)),
        ("throttling", lambda: client.produces(kafka, topic, f"{topic}-slow")),
        ("usage and quota", lambda: _is_metered(sql, f"{topic}-slow")),
    ]
    for name, step in steps:
        try:
            step()
        except Exception as exc:  # noqa: BLE001 - whatever a client of another release raises is the finding
            return [f"{name}: {type(exc).__name__}: {str(exc).strip().splitlines()[0] if str(exc) else ''}"]
    return []


def _consumes(client: Client, at: ServedRelease, topic: str) -> None:
    client_id = f"{topic}-c"
    seen = client.consumes(at.served.kafka, topic, client_id, lambda: not client.pushes or _pushed(at, client_id) > 0)
    if seen != sorted(RECORDS * 2):
        raise AssertionError(f"{len(seen)} of {2 * len(RECORDS)} records were read")
    if client.pushes and not _pushed(at, client_id):
        raise AssertionError("no telemetry")


def _pushed(at: ServedRelease, client_id: str) -> int:
    """Metrics that a client pushed."""
    query = """SELECT uniqExact(metric) FROM headroom.client_metrics
               WHERE cluster = {cluster:String} AND client_id = {client_id:String}"""
    return int(rows(at.served.sql, query, cluster=CLUSTER, client_id=client_id)[0][0])


def _is_metered(sql: str, client_id: str) -> None:
    query = """SELECT max(`limit`), max(throttle_ms) > 0, sum(bytes) FROM headroom.quota_usage
               WHERE client_id = {client_id:String} AND quota_key = 'producer_byte_rate'"""
    least = sum(map(len, RECORDS))
    eventually(
        lambda: rows(sql, query, client_id=client_id)[0],
        lambda found: found[:2] == (LIMIT, 1) and found[2] >= least,
    )
