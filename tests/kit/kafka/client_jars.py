"""The jars of another version of Kafka's Java client."""

from pathlib import Path

from headroom.demo.jars import Progress, fetch_once


def client_libs(java: str, version: str, cache: Path, progress: Progress = print) -> Path:
    """Their directory; fetches them into `cache` if needed.

    Raises DemoError.
    """
    libs = (cache / "libs").absolute()
    what = f"the jars of the Java client {version} (about 17 MB, once)"
    fetch_once(java, libs, f'<dependency org="org.apache.kafka" name="kafka-clients" rev="{version}"/>', progress, what)
    return libs
