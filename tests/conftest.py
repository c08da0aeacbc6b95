"""What tests of all packages share, started once for the session: a broker, a JVM with Kafka's classes, ClickHouse."""

import gc
import itertools
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import py4j.java_gateway
import py4j.protocol
import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling

from headroom.demo.broker import LocalCluster, archive
from headroom.demo.jars import KAFKA_VERSION, find_java
from headroom.demo.jars import kafka_libs as fetch_kafka_libs
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.processes import exclusive
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

# No deadline: machines that run tests are busy. Kafka's own classes and `make fuzz` cover far more examples.
settings.register_profile("headroom", deadline=None, max_examples=40)
settings.load_profile("headroom")

# Folders whose tests share a server that takes long to start: a cluster, a Spark session, a Headroom with its browser.
_ONE_WORKER = (
    "tests/telemetry/gateway/security/",
    "tests/spark_jobs/",
    "tests/headroom/web/",
    "tests/docs/test_commands",
)
_SLOW = ("slow", "kafka", "java", "clickhouse", "spark", "browser", "dist", "image", "promtool")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Treats a skip as a failure: a test declares what it needs by markers, and all of it must be installed."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects without garbage collection, which takes half of the time, and excludes what was collected from later
    ones: modules and tests live until the end."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, and before them those of which one worker runs many, so that no worker waits
    for one of them at the end."""
    slow = {item.path for item in items if any(item.get_closest_marker(name) for name in _SLOW)}
    longest = {item.path for item in items if item.get_closest_marker("dist")}
    items.sort(
        key=lambda item: (item.path not in longest, not item.nodeid.startswith(_ONE_WORKER), item.path not in slow)
    )


class FoldersOrFiles(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Hands out files, and the folders of _ONE_WORKER as a whole."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in _ONE_WORKER if nodeid.startswith(folder)), super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FoldersOrFiles | None:
    """`--dist loadgroup`: workers start what a folder's tests share once, not in each worker."""
    return FoldersOrFiles(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture(autouse=True)
def own_java_exceptions(request: pytest.FixtureRequest) -> Iterator[None]:
    """PySpark changes how py4j tells Java exceptions, for every JVM of the process; Kafka's has no class of Spark's."""
    installed = py4j.java_gateway.get_return_value
    if request.node.get_closest_marker("spark") is None:
        py4j.java_gateway.get_return_value = py4j.protocol.get_return_value
        yield
        py4j.java_gateway.get_return_value = installed
    else:
        yield


@pytest.fixture(scope="session")
def java() -> str:
    """Path of Java 17 or newer. A test that needs it fails without it."""
    return find_java()


@pytest.fixture(scope="session")
def kafka_libs(java: str, request: pytest.FixtureRequest) -> Path:
    """Kafka's jars, and beside them an archive of a broker's classes (JEP 350), with which it starts in half the time.

    The demo uses one that is there.
    """
    libs = fetch_kafka_libs(java, request.config.rootpath / ".cache" / f"kafka-{KAFKA_VERSION}")
    with exclusive(libs.parent):  # of two workers the second waits
        if not archive(libs).exists():
            unfinished = archive(libs).with_suffix(f".{os.getpid()}")
            with LocalCluster(java, libs, jvm_options=[f"-XX:ArchiveClassesAtExit={unfinished}"]) as cluster:
                cluster.brokers[0].stop(300)  # it writes the archive when it ends
            unfinished.rename(archive(libs))  # in one step: others may be starting
    return libs


@pytest.fixture(scope="session")
def jvm(java: str, kafka_libs: Path) -> Iterator[Jvm]:
    """A JVM with Kafka's own classes: `jvm.classes.org.apache.kafka...`, `.producer()`, `.consumer()`."""
    with Jvm(java, kafka_libs) as running:
        yield running


@pytest.fixture(scope="session")
def kafka(java: str, kafka_libs: Path) -> Iterator[LocalCluster]:
    """A real single-node broker: `kafka.bootstrap`. Shared: name topics, groups and client ids of your own."""
    with LocalCluster(java, kafka_libs) as running:
        yield running


@pytest.fixture(scope="session")
def kafka_admin(jvm: Jvm, kafka: LocalCluster) -> Iterator[Admin]:
    """Kafka's Admin on the shared broker: topics, quotas, subscriptions."""
    with Admin(jvm, kafka.bootstrap) as admin:
        yield admin


@pytest.fixture(scope="session")
def new_topic(kafka_admin: Admin) -> Callable[[], str]:
    """Makes a topic with one partition and a name of its own."""
    numbers = itertools.count(1)

    def create() -> str:
        name = f"topic-{next(numbers)}"
        kafka_admin.create_topics([name])
        return name

    return create


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    """A ClickHouse server with our schema. Shared: name clusters and tables of your own."""
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running
