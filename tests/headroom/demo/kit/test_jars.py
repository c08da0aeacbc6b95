"""Java and the Kafka jars are found, refused or fetched; fake scripts stand in for `java`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headroom.demo.kit.errors import PrerequisiteError
from headroom.demo.kit.jars import MARKER, find_java, kafka_libs
from spark_jobs.java import java_version

# Ivy's part: one jar where -retrieve points to.
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


@pytest.mark.parametrize(
    ("said", "major"), [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("11.0.2", 11), ("1.8.0_402", 8), ("", 0)]
)
def test_major_version(tmp_path: Path, said: str, major: int) -> None:
    assert java_version(str(fake_java(tmp_path, said) / "bin" / "java")) == major


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    home, path = fake_java(tmp_path / "home", "17.0.1"), fake_java(tmp_path / "path", "21.0.1")
    assert find_java(environ(home, path)) == str(home / "bin" / "java")


def test_path_is_taken_when_java_home_is_too_old(tmp_path: Path) -> None:
    home, path = fake_java(tmp_path / "home", "11.0.2"), fake_java(tmp_path / "path", "17.0.1")
    assert find_java(environ(home, path)) == str(path / "bin" / "java")


def test_a_too_old_java_is_named(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "1.8.0_402")
    with pytest.raises(PrerequisiteError, match=r"Java 17 or newer is needed: .*/bin/java is Java 8; set JAVA_HOME"):
        find_java(environ(home, None))


def test_no_java_at_all() -> None:
    with pytest.raises(PrerequisiteError, match="none in JAVA_HOME or PATH"):
        find_java(environ(None, None))


def test_java_home_that_leads_nowhere(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="is not a Java that runs"):
        find_java(environ(tmp_path / "gone", None))


def test_jars_are_fetched_once(tmp_path: Path) -> None:
    reported: list[str] = []
    java = script(tmp_path / "java", FETCHES)
    libs = kafka_libs(java, tmp_path / "cache", reported.append, {})
    again = kafka_libs(script(tmp_path / "java", FAILS), tmp_path / "cache", reported.append, {})
    assert sorted(file.name for file in libs.iterdir()) == [MARKER, "kafka_2.13-4.3.1.jar"]
    assert again == libs
    assert len(reported) == 1


def test_of_two_processes_that_need_the_jars_one_fetches_them(tmp_path: Path) -> None:
    """Threads stand for processes: each opens the directory, and the lock belongs to what was opened."""
    reported: list[str] = []
    java = script(tmp_path / "java", FETCHES)
    with ThreadPoolExecutor(4) as processes:
        found = {*processes.map(lambda _: kafka_libs(java, tmp_path / "cache", reported.append, {}), range(4))}
    assert len(found) == len(reported) == 1


def test_a_directory_without_its_marker_is_fetched_anew(tmp_path: Path) -> None:
    rest = tmp_path / "cache" / "libs" / "half-of-a.jar"
    script(rest, "")
    libs = kafka_libs(script(tmp_path / "java", FETCHES), tmp_path / "cache", lambda _text: None, {})
    assert not rest.exists()
    assert (libs / MARKER).exists()


def test_a_failed_download_says_why_and_leaves_no_libs(tmp_path: Path) -> None:
    java = script(tmp_path / "java", FAILS)
    with pytest.raises(PrerequisiteError, match=r"cannot fetch the Kafka jars: Server access error .*refused"):
        kafka_libs(java, tmp_path / "cache", lambda _text: None, {})
    assert list((tmp_path / "cache").iterdir()) == []


def test_ones_own_jars(tmp_path: Path) -> None:
    own = {"HEADROOM_KAFKA_LIBS": str(tmp_path)}
    with pytest.raises(PrerequisiteError, match=r"holds no kafka_2\.13"):
        kafka_libs("java", environ=own)
    (tmp_path / "kafka_2.13-4.3.1.jar").touch()
    assert kafka_libs("java", environ=own) == tmp_path
