"""Java and the Kafka jars are found, refused or fetched; fake scripts stand in for `java`."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from headroom.demo import scenario
from headroom.demo.jars import KAFKA_VERSION, MARKER, MIRROR_VARIABLE, find_java, kafka_libs, proxy_options
from headroom.demo.jvm import Jvm
from headroom.demo.processes import DemoError
from tests.kit.kafka.client_jars import client_libs
from tests.kit.proxy import running_proxy

# Stands for Ivy: creates one jar at the path of -retrieve.
FETCHES = """#!/bin/sh
while [ $# -gt 0 ]; do
  if [ "$1" = -retrieve ]; then mkdir -p "$(dirname "$2")" && touch "$(dirname "$2")/kafka_2.13-4.3.1.jar"; fi
  shift
done
echo '\t[SUCCESSFUL ] org.apache.kafka#kafka_2.13;4.3.1!kafka_2.13.jar (9ms)'
"""

FAILS = """#!/bin/sh
echo '\t\tmodule not found: org.apache.kafka#kafka_2.13;4.3.1'
echo '\tServer access error at url repository/kafka_2.13-4.3.1.pom (java.net.ConnectException: Connection refused)'
exit 1
"""


def script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def fake_java(home: Path, version: str) -> Path:
    script(home / "bin" / "java", f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    return home


def environ(home: Path | None, path: Path | None) -> dict[str, str]:
    values = {"PATH": str(path / "bin") if path else ""}
    return values | ({"JAVA_HOME": str(home)} if home else {})


def test_java_home_takes_precedence_over_path(tmp_path: Path) -> None:
    home, path = fake_java(tmp_path / "home", "17.0.1"), fake_java(tmp_path / "path", "21.0.1")
    assert find_java(environ(home, path)) == str(home / "bin" / "java")
    assert find_java(environ(None, path)) == str(path / "bin" / "java")


def test_missing_outdated_and_invalid_java_is_reported(tmp_path: Path) -> None:
    """Also where the java on PATH would do: the Spark job takes that of JAVA_HOME."""
    new, old = fake_java(tmp_path / "new", "21.0.1"), fake_java(tmp_path / "old", "1.8.0_402")
    for home, path, reason in (
        (None, None, "none in"),
        (None, old, "/old/bin/java is Java 8; set JAVA_HOME"),
        (old, new, "JAVA_HOME: .*/old/bin/java is Java 8; set JAVA_HOME to a newer one, or unset it"),
        (tmp_path / "gone", new, "JAVA_HOME: .* is not a Java that runs"),
    ):
        with pytest.raises(DemoError, match=f"Java 17 or newer is needed: .*{reason}"):
            find_java(environ(home, path))


def test_what_a_jvm_prints_first_is_no_port(tmp_path: Path) -> None:
    java = script(tmp_path / "java", "#!/bin/sh\necho Listening for transport dt_socket\necho Error: no class >&2\n")
    with pytest.raises(DemoError, match="the JVM for the Java clients did not start: Error: no class"):
        Jvm(java, tmp_path).start()


def test_jars_are_fetched_once(tmp_path: Path) -> None:
    reported: list[str] = []
    java = script(tmp_path / "java", FETCHES)
    libs = kafka_libs(java, tmp_path / "cache", reported.append, {})
    again = kafka_libs(script(tmp_path / "java", FAILS), tmp_path / "cache", reported.append, {})
    assert sorted(file.name for file in libs.iterdir()) == [MARKER, "kafka_2.13-4.3.1.jar"]
    assert again == libs
    assert len(reported) == 1


def test_a_directory_for_the_jars_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"cannot keep the Kafka jars in .*/java/cache: Not a directory"):
        kafka_libs("java", Path(script(tmp_path / "java", FETCHES)) / "cache", environ={})


def test_the_log_of_a_broker_that_does_not_start_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = script(tmp_path / "java", "#!/bin/sh\necho java.io.IOException: no room; exit 1\n")
    monkeypatch.setattr(scenario, "find_java", lambda: java)
    monkeypatch.setenv("HEADROOM_KAFKA_LIBS", str(tmp_path))
    (tmp_path / "kafka_2.13-4.3.1.jar").touch()
    with ExitStack() as stack:
        demo = scenario.Scenario(stack, lambda _: None)
        with pytest.raises(DemoError, match="cannot format Kafka's storage"):
            demo.build()
        assert demo.keep_logs(tmp_path / "logs")
    assert "no room" in (tmp_path / "logs" / "broker.log").read_text()


def test_concurrent_processes_fetch_jars_once(tmp_path: Path) -> None:
    """Threads stand for processes: each opens the directory, and the lock belongs to the open file."""
    reported: list[str] = []
    java = script(tmp_path / "java", FETCHES)
    with ThreadPoolExecutor(4) as processes:
        found = {*processes.map(lambda _: kafka_libs(java, tmp_path / "cache", reported.append, {}), range(4))}
    assert len(found) == len(reported) == 1


def test_directory_without_marker_is_fetched_again(tmp_path: Path) -> None:
    rest = tmp_path / "cache" / "libs" / "half-of-a.jar"
    script(rest, "")
    libs = kafka_libs(script(tmp_path / "java", FETCHES), tmp_path / "cache", lambda _text: None, {})
    assert not rest.exists()
    assert (libs / MARKER).exists()


def test_failed_download_reports_the_cause_and_leaves_no_files(tmp_path: Path) -> None:
    java = script(tmp_path / "java", FAILS)
    with pytest.raises(DemoError, match=r"cannot fetch the Kafka jars: Server access error .*refused"):
        kafka_libs(java, tmp_path / "cache", lambda _text: None, {})
    assert list((tmp_path / "cache").iterdir()) == []


def test_jars_from_the_environment_variable_are_used(tmp_path: Path) -> None:
    own = {"HEADROOM_KAFKA_LIBS": str(tmp_path)}
    with pytest.raises(DemoError, match=r"holds no kafka_2\.13"):
        kafka_libs("java", environ=own)
    (tmp_path / "kafka_2.13-4.3.1.jar").touch()
    assert kafka_libs("java", environ=own) == tmp_path


@pytest.mark.parametrize(
    ("proxies", "options"),
    [
        ({}, []),
        (
            {"https": "http://outgoing.example:3128"},
            ["-Dhttps.proxyHost=outgoing.example", "-Dhttps.proxyPort=3128"],
        ),
        ({"http": "outgoing.example:8080"}, ["-Dhttp.proxyHost=outgoing.example", "-Dhttp.proxyPort=8080"]),
        (
            {"all": "http://outgoing.example"},
            [
                *("-Dhttp.proxyHost=outgoing.example", "-Dhttp.proxyPort=80"),
                *("-Dhttps.proxyHost=outgoing.example", "-Dhttps.proxyPort=80"),
            ],
        ),
        (
            {"https": "http://me:s%20t@outgoing.example:3128"},
            [
                *("-Dhttps.proxyHost=outgoing.example", "-Dhttps.proxyPort=3128"),
                *("-Dhttp.proxyUser=me", "-Dhttp.proxyPassword=s t", "-Djdk.http.auth.tunneling.disabledSchemes="),
            ],
        ),
    ],
)
def test_a_jvm_gets_the_environment_s_proxies(proxies: dict[str, str], options: list[str]) -> None:
    assert list(proxy_options(proxies)) == [*options, "-Dhttp.nonProxyHosts=localhost|127.*|[::1]"]


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        ("*", "*"),
        ("ch, .corp.example,*.b", "ch|*.ch|corp.example|*.corp.example|b|*.b"),
        (" , .", "localhost|127.*|[::1]"),
    ],
)
def test_a_jvm_gets_the_environment_s_exceptions(names: str, patterns: str) -> None:
    assert list(proxy_options({"no": names})) == [f"-Dhttp.nonProxyHosts={patterns}"]


@pytest.mark.java
def test_jars_come_through_the_proxy(java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        with pytest.raises(DemoError):
            client_libs(java, KAFKA_VERSION, tmp_path, lambda _: None)
    assert proxy.requests
    assert all(line.startswith("CONNECT ") and line.split()[1].endswith(":443") for line in proxy.requests)


@pytest.mark.java
def test_jars_come_from_a_mirror(java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_proxy() as mirror:
        monkeypatch.setenv(MIRROR_VARIABLE, f"http://{mirror.address}/maven?a=1&b")
        with pytest.raises(DemoError, match=MIRROR_VARIABLE):
            client_libs(java, KAFKA_VERSION, tmp_path, lambda _: None)
    artifact = f"/org/apache/kafka/kafka-clients/{KAFKA_VERSION}/kafka-clients-{KAFKA_VERSION}.pom"
    assert [line for line in mirror.requests if artifact in line]
