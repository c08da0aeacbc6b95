"""The image: built by buildah from a base that mmdebstrap makes, started, and pushed to by a Java client.

Minutes and some hundred MB: `make image` runs this where buildah is, and `make test` leaves it out.
"""

import json
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headroom.demo.jvm import Jvm
from headroom.demo.processes import first_line, free_ports, start
from tests.kit.serving import eventually, rows, running
from tests.kubernetes.images import GATEWAY, IMAGE, build, buildah

pytestmark = [pytest.mark.image, pytest.mark.java, pytest.mark.timeout(1500)]

GATEWAY_MB = 400  # unpacked, with Debian
ENTRYPOINT, DATA = "/opt/headroom/entrypoint.sh", "/var/lib/headroom"
PIDS = "/mnt"  # buildah may mount the image's volume over another one at DATA
USER = 10001
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    """A container of the image."""
    build(IMAGE)
    name = buildah("from", IMAGE)
    yield name
    buildah("rm", name)


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    """A container of the image for gateways."""
    build(GATEWAY, "--target", "gateway")
    name = buildah("from", GATEWAY)
    yield name
    buildah("rm", name)


def run(container: str, *argv: str) -> str:
    """The name of the host can be resolved, as in a pod."""
    return buildah("run", "--isolation", "chroot", "--hostname", "localhost", container, "--", *argv)


def confined(container: str, pids: Path) -> list[str]:
    """The command line of the entry point with a read-only root, the image's volume, a /tmp and no capability.

    As `podman run --read-only --cap-drop ALL`. The process id is written to `pids`.
    """
    options = ["--isolation", "chroot", "--hostname", "localhost", "--user", "root", "--cap-add", "CAP_SYS_ADMIN"]
    mounts = ["--volume", f"{pids}:{PIDS}", "--mount", "type=tmpfs,destination=/tmp"]
    ids = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    unprivileged = shlex.join(["setpriv", *ids, "--bounding-set=-all", "--no-new-privs"])
    script = f'mount -o remount,ro,bind / && echo $$ > {PIDS}/pid && exec {unprivileged} {ENTRYPOINT} "$@"'
    return ["buildah", "run", *options, *mounts, container, "--", "sh", "-c", script, "sh"]


def health_check(http: str) -> list[str]:
    """The image's own health check, at another port."""
    image = json.loads(buildah("inspect", "--type", "image", IMAGE))
    kind, *command = image["Docker"]["config"]["Healthcheck"]["Test"]
    assert kind == "CMD"
    return [argument.replace("127.0.0.1:9644", http) for argument in command]


def test_image_runs_compiled_as_an_unprivileged_user(container: str) -> None:
    assert "(compiled, Python 3.11" in run(container, "headroom", "--version")
    assert run(container, "id", "-u") == str(USER)
    assert run(container, "sh", "-c", "test -w /usr || test -w /opt/headroom || echo read-only") == "read-only"
    assert "17." in run(container, "sh", "-c", "java -version 2>&1")


def test_image_of_gateways_is_small_and_serves(gateway: str) -> None:
    size = buildah("run", "--isolation", "chroot", "--user", "root", gateway, "--", "du", "-smx", "/")
    assert int(size.split()[0]) < GATEWAY_MB
    assert "(compiled, Python 3.11" in run(gateway, ENTRYPOINT, "--version")
    serve = f"timeout 20 {ENTRYPOINT} serve --data /tmp/data --clickhouse http://127.0.0.1:1 --listen 127.0.0.1:0"
    served = run(gateway, "sh", "-c", f"{serve} --http 127.0.0.1:0 || true")
    assert served.startswith("ready kafka=127.0.0.1:")
    without_clickhouse = run(gateway, "sh", "-c", f"{ENTRYPOINT} serve --data /tmp/data 2>&1 || true")
    assert "install headroom[embedded]" in without_clickhouse


def test_jobs_map_the_class_archive(container: str) -> None:
    mapped = "from spark_jobs.session import mapped; print(mapped())"
    assert "-XX:SharedArchiveFile=/opt/headroom/" in run(container, "python3", "-c", mapped)


def test_entry_point_starts_headroom_and_spark(container: str) -> None:
    assert "(compiled, Python 3.11" in run(container, ENTRYPOINT, "--version")
    driver = f"SPARK_DRIVER_BIND_ADDRESS=127.0.0.1 {ENTRYPOINT} driver --version 2>&1"
    assert "version 4.3.0" in run(container, "sh", "-c", driver)


def test_spark_runs_as_a_user_of_any_id(container: str) -> None:
    """As OpenShift starts it: an id without a name, of group 0."""
    job = "from pyspark.sql import SparkSession as S; print('rows', S.builder.getOrCreate().range(7).count())"
    driver = f"{ENTRYPOINT} driver --master 'local[1]' --conf spark.ui.enabled=false /tmp/job.py"
    script = f'echo "{job}" > /tmp/job.py && cd /tmp && SPARK_DRIVER_BIND_ADDRESS=127.0.0.1 {driver}'
    options = ["--isolation", "chroot", "--hostname", "localhost", "--user", "1000680000:0"]
    assert "rows 7" in buildah("run", *options, container, "--", "sh", "-c", script)
    written = f"touch {DATA}/any && headroom --version"
    assert "compiled" in buildah("run", *options, container, "--", "sh", "-c", written)


def test_java_client_pushes_and_a_read_only_container_drains(container: str, jvm: Jvm, tmp_path: Path) -> None:
    kafka, http, sql = (f"127.0.0.1:{port}" for port in free_ports(3))
    pids = tmp_path / "pids"
    pids.mkdir()
    argv = [*confined(container, pids), "serve", "--data", DATA, "--listen", kafka, "--http", http, "--sql", sql]
    with (tmp_path / "log").open("wb") as log:
        process = start(argv, stderr=log, stdout=subprocess.PIPE)
    assert first_line(process, PATIENCE_S) == f"ready kafka={kafka} http={http} sql={sql}", (
        tmp_path / "log"
    ).read_text()
    pid = int((pids / "pid").read_text())
    try:
        # It sees a read-only root, is not root and has no capability.
        proc = Path("/proc") / str(pid)
        root = [line.split() for line in (proc / "mounts").read_text().splitlines() if line.split()[1] == "/"][-1]
        assert "ro" in root[3].split(",")
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
        assert status["Uid"].split() == [str(USER)] * 4
        assert (int(status["CapEff"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"]) == (0, 0, "1")
        ask = ["headroom", "subscriptions", "alter", "--name", "all", "--metrics", "*", "--interval", "1000"]
        run(container, *ask, "--bootstrap-server", kafka)
        pushes = pushed(jvm, kafka, sql)
        assert pushes > 0
        run(container, *health_check(http))
    finally:
        os.kill(pid, signal.SIGTERM)
    assert process.wait(60) == 0, (tmp_path / "log").read_text()
    with pytest.raises(AssertionError, match="Connection refused"):
        run(container, *health_check(http))


def pushed(jvm: Jvm, kafka: str, sql: str) -> int:
    """How many pushes of a Java consumer are in the store, once there is one."""
    consumer = jvm.consumer(kafka, "in-a-container", "group", enable_auto_commit="false")
    partition = jvm.classes.org.apache.kafka.common.TopicPartition("no-such-topic", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)

    def poll(done: threading.Event) -> None:
        while not done.is_set():
            consumer.poll(jvm.duration(100))

    query = "SELECT count() FROM headroom.pushes WHERE client_id = 'in-a-container'"
    with closing(consumer), running(poll):
        return int(eventually(lambda: rows(sql, query)[0][0], bool, PATIENCE_S))
