"""Every command of README, CONTRIBUTING and docs/ runs as printed, with placeholders filled, and exits with 0.

Commands are lines of code blocks without a language, blocks of `shell` as a whole, and complete spans. A span or line
with `...` or `[...]` is no command but the mention of one, as is a span of NAMED. Placeholders such as BROKER:9092 are
filled.
"""

import functools
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headroom.demo.processes import free_ports
from tests.docs.example_service import Example
from tests.docs.reference_pages import FENCE, SPAN

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# What a command may begin with that is not run: it changes the machine, takes very long, or needs what no test machine
# has. Each has a test of its own, which is named.
NOT_RUN = {
    "buildah": "make image",
    "podman": "make image",
    "docker": "tests/deploy/test_files.py",
    "helm": "tests/deploy/test_chart.py",
    "kubectl": "tests/deploy/test_chart_network.py",
    "systemctl": "tests/deploy/test_files.py",
    "useradd": "tests/deploy/test_files.py",
    "install": "tests/deploy/test_files.py",
    "open": "a browser",
    "kafka-acls.sh": "Kafka's own, and needs an authorizer",
    "kafka-client-metrics.sh": "Kafka's own; make oracle compares with its class",
    "spark-submit": "tests/spark_jobs/jobs/test_cluster.py",
    "headroom store check": "tests/headroom/cli/test_store_check.py",
    "headroom verify-client": "tests/kafka_clients/test_verify_client.py",
}
# Commands of which pages speak, and which need more words.
NAMED = {
    "headroom demo",
    "headroom gateway check",
    "headroom job",
    "headroom quotas alter",
    "headroom quotas export",
    "headroom quotas plan",
    "headroom quotas resolve",
    "headroom quotas stale",
    "headroom quotas what-if",
    "headroom serve",
    "headroom serve --clickhouse",
    "headroom sql",
    "headroom subscriptions",
    "headroom subscriptions alter",
    "headroom subscriptions preview",
    "promtool test rules",
}
_RUN = ("headroom", "make", "python", "python3", "curl", "pip", "zip", "openssl", "printf", "promtool", "pytest", "sed")
_RUN_IN_TEXT = ("headroom", "curl", "promtool")
_PROGRAMS = {*_RUN, *(begin.partition(" ")[0] for begin in NOT_RUN)}
_COMMENT = re.compile(r"\s+#\s.*$")
_ASSIGNED = re.compile(r"(?:[A-Z_]+=\S+\s+)+")
_MENTION = re.compile(r"\.\.\.|\[[A-Z,-]|\bT\b|\||<| > [a-z]|[A-Z]+_[A-Z]+$")


def commands(page: Path) -> list[str]:
    """In their order, each once."""
    text = page.read_text()
    found = [line for line in _lines(text) if "..." not in line]
    for span in SPAN.findall(FENCE.sub("", text)):
        if span.startswith("SELECT "):
            found.append(f'headroom sql "{span}"')
        elif program(span) in _RUN_IN_TEXT and " " in span and span not in NAMED and not _MENTION.search(span):
            found.append(span)  # a whole command: with options and their values, or one that needs none
    return list(dict.fromkeys(found))


def scripts(page: Path) -> list[str]:
    """Lines that belong together."""
    return [code for language, code in FENCE.findall(page.read_text()) if language == "shell"]


def _lines(text: str) -> Iterator[str]:
    for language, code in FENCE.findall(text):
        if language in ("", "sh", "bash"):
            lines = (_COMMENT.sub("", line.strip()) for line in code.replace("\\\n", " ").splitlines())
            yield from (line for line in lines if line)


def program(line: str) -> str:
    """What a line runs, behind variables that it sets."""
    return _ASSIGNED.sub("", line).partition(" ")[0]


TIMEOUT_S = 600.0  # a hang
SHOWN = 2_000
# Answers that a page explains, by how the command begins: nothing to forecast yet.
ALSO = {"headroom job throttle-forecast": {3}, "headroom status": {1}}

# What stands for the application of a reader: a librdkafka client that pushes until it is ended.
_CLIENT = f"""#!{sys.executable}
import signal, sys
from confluent_kafka import Producer
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
producer = Producer({{"bootstrap.servers": sys.argv[2], "log_level": 2}})
signal.sigwait({{signal.SIGTERM}})
producer.close()
"""
_SERVE = re.compile(r"((?:[A-Z_]+=\S+ )*)headroom serve")


def with_services(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that runs commands, which takes minutes."""
    marks = pytest.mark
    for mark in (marks.release, marks.kafka, marks.java, marks.clickhouse, marks.spark, marks.slow):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def example() -> Iterator[Example]:
    with Example() as running:
        running.fill()
        yield running


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run: it has what the checkout has, and what they write stays here."""
    found = tmp_path_factory.mktemp("commands")
    for name in (
        "deploy",
        "spark_jobs",
        "telemetry",
        "quota_metrics",
        "exporters",
        "tests",
        "Makefile",
        "pyproject.toml",
    ):
        (found / name).symlink_to(ROOT / name)
    (found / "headroom.yaml").write_text("processes: 1\n")
    (found / "owners.yaml").write_text("owners: [{team: payments, user: web}]\n")
    (found / "dist").mkdir()
    with zipfile.ZipFile(found / "dist" / "headroom-0.1.0-py3-none-any.whl", "w") as wheel:
        about = "headroom-0.1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: headroom\nVersion: 0.1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    client = found / "start-my-client"
    client.write_text(_CLIENT)
    client.chmod(0o755)
    return found


@with_services
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page(page: Path, example: Example, directory: Path) -> None:
    """In the order of the page, since a line may use what one above it wrote."""
    failed = [command for command in commands(page) if not succeeds(command, example, directory)]
    assert failed == []


@with_services
@pytest.mark.parametrize("page", [page for page in PAGES if scripts(page)], ids=lambda page: page.stem)
def test_scripts_of_a_page(page: Path, example: Example, directory: Path) -> None:
    for script in scripts(page):
        status, printed = run(script.replace("127.0.0.1:9092", f"127.0.0.1:{free_ports(1)[0]}"), example, directory)
        assert status == 0, printed


def succeeds(command: str, example: Example, directory: Path) -> bool:
    """Whether the command exits with 0, or with what its page explains; else prints what it printed."""
    if any(command == begin or command.startswith(f"{begin} ") for begin in NOT_RUN):
        return True
    text = filled(command, example)
    status, printed = (serve if _SERVE.match(text) else run)(text, example, directory)
    allowed = {0} | next((more for begin, more in ALSO.items() if text.startswith(begin)), set())
    if status not in allowed:
        print(f"$ {text}\n{printed[-SHOWN:]}\nexit status {status}")
    return status in allowed


def filled(text: str, example: Example) -> str:
    """The command with addresses and names of the example, in a form that changes nothing outside of it."""
    for pattern, value in (
        (r"\b(broker-?\d?|BROKER):\d+(,broker-?\d:\d+)*", example.broker),
        (r"(?<=--bootstrap-server )HOST:PORT", example.broker),
        (r"(127\.0\.0\.1|HOST):9644", example.served.http),
        (r"\bHEADROOM(?=/)", example.served.http),
        (r"\b(USER|alice|U)\b", "web"),
        (r"\b(CLIENT|app-1|C)\b", "web-sessions"),
        (r"\bCLUSTER\b", "shop"),
        (r"\bREASON\b", "decode"),
        (r"\bKEY\b", "producer_byte_rate"),
        (r"\bVALUE\b", "400000"),
        (r"(?<=headroom job )NAME\b", "quota-headroom"),
        (r"\bFILE\b", "headroom.yaml"),
        (r"\bDIR\b", "data"),
        (r"\bURL\b", "http://headroom@127.0.0.1:1"),
        (r"\b9f3c\b", example.quarantined),
        (r"/opt/headroom", "venv"),
        (r"\bpip install ", "pip install --dry-run --no-deps --no-index "),
        (r"^make (\S+).*", rf"make --dry-run -C {ROOT} \1"),
    ):
        text = re.sub(pattern, value, text)
    if text.startswith("headroom subscriptions") and "--bootstrap-server" not in text and " preview" not in text:
        text += f" --bootstrap-server {example.served.kafka}"  # the default is the gateway's usual address
    return text


@functools.cache
def run(text: str, example: Example, directory: Path) -> tuple[int, str]:
    """Runs a line of a shell, once: several pages may show it."""
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{text}\n:"],  # with more to run, the shell stays the parent
        cwd=directory,
        env=example.environment | {"HOME": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return ended.returncode, ended.stdout


def serve(text: str, example: Example, directory: Path) -> tuple[int, str]:
    """Starts `headroom serve` on free ports until it is ready, then stops it."""
    text = re.sub(r"(?<=--)([a-z-]+) [\w.]+:(?:PORT|9192|9092|4317|4318)\b", r"\1 127.0.0.1:0", text)
    free = ["--http", "--sql", *(["--listen"] if " --listen " not in text else [])]
    text = _SERVE.sub(r"\1exec headroom serve", text)
    line = f"{text} --data {tempfile.mkdtemp(dir=directory)} {' '.join(f'{flag} 127.0.0.1:0' for flag in free)}"
    with subprocess.Popen(
        ["bash", "-c", line], cwd=directory, env=example.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        status = process.wait(TIMEOUT_S)
    return (status if printed.startswith("ready ") else 1), printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_without_a_language_are_commands(page: Path) -> None:
    """Else a command that nobody knows here is not run."""
    assert [line for line in _lines(page.read_text()) if program(line) not in _PROGRAMS] == []


def test_what_is_not_run_is_tested_elsewhere() -> None:
    named = [place for place in NOT_RUN.values() if place.startswith("tests/")]
    assert [place for place in named if not (ROOT / place).exists()] == []
