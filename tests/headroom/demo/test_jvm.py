"""The JVM of the Java clients starts with what its user's options print, or says why not."""

from pathlib import Path

import pytest

from headroom.demo.jvm import Jvm
from headroom.demo.processes import DemoError


@pytest.mark.java
def test_a_jvm_may_print_something_first(java: str, kafka_libs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The debugger prints "Listening for transport dt_socket at address: ..." on stdout."""
    debugger = "-agentlib:jdwp=transport=dt_socket,server=y,suspend=n,address=127.0.0.1:0"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", debugger)
    with Jvm(java, kafka_libs) as jvm:
        assert jvm.classes.java.lang.Math.abs(-7) == 7


def test_a_jvm_that_only_prints_is_a_one_line_error(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho Listening for transport dt_socket\necho Error: no class >&2\n")
    java.chmod(0o755)
    with (
        pytest.raises(DemoError, match="the JVM for the Java clients did not start: Error: no class"),
        Jvm(str(java), tmp_path),
    ):
        pass
