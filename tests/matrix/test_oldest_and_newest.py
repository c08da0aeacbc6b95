"""The short form of `make matrix`: the oldest broker that people run, with the oldest and the newest clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headroom.cli.main import app
from headroom.demo.jvm import Admin, Jvm
from tests.matrix.cells import JAVA, LIMIT, JavaClient, LibrdkafkaClient, ServedRelease, faults, served_release
from tests.matrix.releases import BROKERS

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.slow]


@pytest.fixture(scope="module")
def cache(request: pytest.FixtureRequest) -> Path:
    return request.config.rootpath / ".cache"


@pytest.fixture(scope="module")
def oldest(java: str, jvm: Jvm, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRelease]:
    directory = tmp_path_factory.mktemp("matrix") / BROKERS[0]
    with served_release(java, BROKERS[0], cache, directory, jvm) as running:
        yield running


def test_gateway_check_notes_what_the_oldest_broker_has_not(oldest: ServedRelease) -> None:
    result = CliRunner().invoke(app, ["gateway", "check", "--upstream", oldest.broker])
    assert (result.exit_code, "FAIL" in result.output) == (0, False), result.output
    assert "note not with these brokers: client metrics subscriptions can be read" in result.output
    assert "note not with these brokers: the cluster's clock can be read" in result.output
    assert (
        "brokers of release 2.8 have no CLIENT_METRICS (Kafka 3.7): subscriptions are read from the file"
        in result.output
    )


def test_oldest_java_client_works(java: str, cache: Path, oldest: ServedRelease) -> None:
    with JavaClient(java, JAVA[0], cache) as client:
        assert faults(oldest, client) == []


def test_newest_librdkafka_works_and_pushes_telemetry(jvm: Jvm, oldest: ServedRelease) -> None:
    with Admin(jvm, oldest.broker) as admin:

        def set_quota(client_id: str) -> None:
            admin.alter_quota({"client-id": client_id}, {"producer_byte_rate": float(LIMIT)})

        assert faults(oldest, LibrdkafkaClient(set_quota)) == []
