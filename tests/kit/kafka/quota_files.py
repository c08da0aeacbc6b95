"""The quotas that a file declares, for tests of what writes such files, and Kafka's own tool for quotas."""

import subprocess
from pathlib import Path

from headroom.demo.broker import LocalCluster
from quota_metrics.config.quota_file import DeclaredQuota, parse_declared_file


def quotas_of(content: str | bytes) -> list[DeclaredQuota]:
    file = parse_declared_file(content)
    assert file.errors == []
    return file.quotas or []


def kafka_configs(kafka: LocalCluster, java: str, libs: Path, *arguments: str) -> str:
    command = [java, "-cp", f"{libs}/*", "kafka.admin.ConfigCommand", "--bootstrap-server", kafka.bootstrap, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout
