"""Starting and stopping real brokers."""

import socket
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from headroom.demo.broker import LocalCluster
from headroom.demo.processes import DemoError
from tests.kit.serving import eventually

pytestmark = pytest.mark.kafka


def test_brokers_start_and_are_removed_completely(
    java: str, kafka_libs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "é日 😀"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    with LocalCluster(java, kafka_libs, nodes=2) as cluster:
        pids = [broker.pid for broker in cluster.brokers]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        # Each broker learns of the other from the controller, a moment after both are ready.
        eventually(lambda: sorted(admin.list_topics(timeout=60).brokers), lambda found: found == [1, 2])
        cluster.check()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert [*tmp_path.rglob("*")] == [temporary]


def test_port_in_use_is_a_one_line_error(java: str, kafka_libs: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        controller = f"CONTROLLER://127.0.0.1:{port}"
        cluster = LocalCluster(java, kafka_libs, properties={"listeners": f"PLAINTEXT://127.0.0.1:0,{controller}"})
        with pytest.raises(DemoError, match=r"Kafka does not run: .*Address already in use") as caught, cluster:
            pass
    assert "\n" not in str(caught.value)
    assert not cluster.directory.exists()


def test_terminated_broker_is_detected(java: str, kafka_libs: Path) -> None:
    with LocalCluster(java, kafka_libs) as cluster:
        process = psutil.Process(cluster.brokers[0].pid)
        process.kill()
        process.wait(60)
        with pytest.raises(DemoError, match="Kafka does not run"):
            cluster.check()
