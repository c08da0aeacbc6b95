"""`headroom quotas what-if` on a real ClickHouse with a generated recording, and its error messages."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from exporters.clickhouse.store import Store
from exporters.model import QuotaLimit, StoredFacts, UsageSample
from headroom.cli.main import app
from telemetry.ingest.arrow_tables import facts_table, limits_table, usage_table
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.recordings import START_MS, Used, limit, recorded
from tests.kit.terminal.pseudo_terminal import shown_by

FROM, TO = str(START_MS // 1000), str(START_MS // 1000 + 60)
WHEN = ["--from", FROM, "--to", TO]
LOADS = (
    Used("alice", "big", [2000] * 60),
    Used("alice", "small", [100] * 60),
    Used("böb [bold]", "it's", [1000] * 60, throttle_ms=900),
)


def write(store: Store, cluster: str, usage: list[UsageSample], limits: list[QuotaLimit]) -> None:
    """In the engine's process. Twice, as a replay may: a row counts once."""
    named = [sample._replace(cluster=cluster) for sample in usage]
    for token in ("once", "twice"):
        store.insert("quota_usage", usage_table(named, START_MS), token=f"usage-{cluster}-{token}")
    rows = [row._replace(cluster=cluster) for row in limits]
    store.insert("quota_limits", limits_table(rows, START_MS), token=f"limits-{cluster}")


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    """One cluster with a recording of a minute."""
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        old = [limit("böb [bold]", "", 5.0, since_s=-90), limit("böb [bold]", "", 1000.0, since_s=-60)]
        write(running.store, "one", recorded(*LOADS), old)
        yield running


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["quotas", "what-if", *arguments])


def answer(clickhouse: RunningClickHouse, *arguments: str) -> dict[str, dict[str, Any]]:
    """By client-id."""
    result = run(*arguments, *WHEN, "--url", clickhouse.url, "--output", "json")
    assert result.exit_code == 0, result.output
    return {row["client_id"]: row for row in json.loads(result.stdout)["clients"]}


def refused(code: int, *arguments: str) -> str:
    """The one-line message of a command that fails."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line.removeprefix("headroom: ")


@pytest.mark.clickhouse
def test_lower_limit_reports_newly_throttled_clients(clickhouse: RunningClickHouse) -> None:
    rows = answer(clickhouse, "--user", "alice", "--client-defaults", "--add", "producer_byte_rate=1000")
    big = rows["big"]
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "big": "newly throttled",
        "small": "unchanged",
    }
    assert big["before"] == {"limit": None, "entity": None, "throttled_s": 0, "throttle_ms_max": 0}
    assert big["after"].pop("throttled_s") == pytest.approx(55, abs=1)
    assert 40_000 < big["after"].pop("delayed_bytes") < 70_000
    assert big["after"].pop("waiting_bytes") > 40_000
    assert big["after"].pop("delay_s_max") > 20
    assert big["after"].pop("throttle_ms_max") > 0
    assert big["after"].pop("peak") > 1
    assert big["after"] == {
        "limit": 1000,
        "entity": {"user": "alice", "client-id": None},
        "shared_with": 0,
        "given_up_bytes": 0,
    }
    assert (big["user"], big["quota_key"], big["broker_id"]) == ("alice", "producer_byte_rate", 1)
    assert rows["small"]["affected"] is True


@pytest.mark.clickhouse
def test_default_entity_and_several_quotas_at_once(clickhouse: RunningClickHouse) -> None:
    rows = answer(clickhouse, "--user-defaults", "--add", "producer_byte_rate=1000,consumer_byte_rate=5")
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "big": "newly throttled",
        "small": "newly throttled",  # it shares the user's quota
        "it's": "unchanged",  # its own quota overrides it
    }
    assert rows == answer(
        clickhouse, "--defaults", "user", "--add", "producer_byte_rate=1000", "--add", "consumer_byte_rate=5"
    )
    both = ["--user-defaults", "--add", "producer_byte_rate=1000,consumer_byte_rate=5", *WHEN, "--url", clickhouse.url]
    assert "record batches above 55 bytes would never be delivered" in run(*both).stdout


@pytest.mark.clickhouse
def test_table_lists_affected_clients(clickhouse: RunningClickHouse) -> None:
    result = run("--defaults", "client-id", "--add", "producer_byte_rate=1500", *WHEN, "--url", clickhouse.url)
    assert result.exit_code == 0
    assert "over 60 s; the change does not affect 1 more; covers " in result.stdout.splitlines()[-1]
    touched = run("--user", "böb [bold]", "--add", "producer_byte_rate=1500", *WHEN, "--url", clickhouse.url).stdout
    assert "böb [bold]" in touched
    assert "1000 -> 1500" in touched


@pytest.mark.clickhouse
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_table_fits_the_terminal_and_the_command_is_whole(clickhouse: RunningClickHouse, size: tuple[int, int]) -> None:
    asked = ["--defaults", "client-id", "--add", "producer_byte_rate=1500", *WHEN, "--url", clickhouse.url]
    code, lines = shown_by(["quotas", "what-if", *asked], *size)
    command = [line for line in lines if line.startswith("kafka-configs.sh ")]
    assert code == 0
    assert [line.split()[-2:] for line in command] == [["--add-config", "producer_byte_rate=1500"]]
    table = lines[: lines.index(command[0])]
    assert all(len(line) <= size[0] for line in table)
    (throttled,) = [line for line in table if line.startswith("newly throttled")]
    assert ("big" in throttled, "none -> 1500" in throttled) == (True, True)


@pytest.mark.clickhouse
def test_replay_has_the_brokers_own_window_and_names_their_class(tmp_path: Path) -> None:
    """60 kB/s in bursts of 1.2 MB: within a limit of 100 kB/s over 31 s, far above it over 11 s."""
    usage = recorded(Used("u", "bursty", [1_200_000, *[0] * 19] * 3))
    asked = ["--client-id", "bursty", "--add", "producer_byte_rate=100000", "--cluster"]
    with running_clickhouse(tmp_path) as running:
        for cluster, samples in (("window-11", 11), ("window-31", 31)):
            write(running.store, cluster, usage, [limit("someone", "else", 1.0)])
            fact = StoredFacts(cluster, 1, 0, "4.3", samples, 1000, 11, 1000, "com.example.Quotas", 0, 8, 3, {})
            running.store.insert("cluster_facts", facts_table([fact], START_MS), token=cluster)
        verdicts = [answer(running, *asked, name)["bursty"]["verdict"] for name in ("window-11", "window-31")]
        table = run(*asked, "window-31", *WHEN, "--url", running.url).stdout
    assert verdicts == ["newly throttled", "unchanged"]
    assert "the brokers use com.example.Quotas (client.quota.callback.class), which may ignore" in table


@pytest.mark.clickhouse
def test_rows_that_others_inserted_without_an_interval_count(tmp_path: Path) -> None:
    """They may leave interval_ms and muted_ms at their default of 0."""
    usage = recorded(Used("u", "big", [2000] * 60), Used("u", "held", [900] * 60, throttle_ms=200))
    asked = ["--user", "u", "--add", "producer_byte_rate=1000", "--cluster"]
    with running_clickhouse(tmp_path) as running:
        write(running.store, "own", usage, [limit("u", "", 9e9)])
        write(running.store, "bare", [row._replace(interval_ms=0, muted_ms=0) for row in usage], [limit("u", "", 9e9)])
        own, bare = (answer(running, *asked, cluster) for cluster in ("own", "bare"))
    assert own["big"]["verdict"] == "newly throttled"
    assert bare["big"]["after"] == own["big"]["after"]
    assert bare["held"]["before"]["throttled_s"] == pytest.approx(12, abs=0.2)


@pytest.mark.clickhouse
def test_missing_usage_is_a_one_line_error(clickhouse: RunningClickHouse, tmp_path: Path) -> None:
    asking = ["--user", "u", "--add", "producer_byte_rate=1", "--url", clickhouse.url]
    assert refused(1, *asking) == "no usage of these quotas was recorded in this time"
    assert refused(1, *asking, *WHEN, "--cluster", "two") == (
        "no usage of cluster 'two' was recorded in this time, only of one"
    )
    assert refused(1, "--user", "u", "--add", "consumer_byte_rate=1", *WHEN, "--url", clickhouse.url) == (
        "no usage of these quotas was recorded in this time"
    )


@pytest.mark.clickhouse
def test_several_clusters_require_the_cluster_flag(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path) as running:
        for cluster, bytes_per_s in (("one", 100), ("two", 2000)):
            write(running.store, cluster, recorded(Used("u", "c", [bytes_per_s] * 20)), [limit("u", "", 9e9)])
        asking = ["--user", "u", "--add", "producer_byte_rate=1000"]
        assert refused(2, *asking, *WHEN, "--url", running.url) == "choose a cluster: one, two"
        verdicts = [answer(running, *asking, "--cluster", name)["c"]["verdict"] for name in ("one", "two")]
    assert verdicts == ["unchanged", "newly throttled"]


def test_unreachable_store_exits_with_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    said = refused(1, "--user", "u", "--add", "producer_byte_rate=1", "--url", url)
    assert said.startswith(f"cannot reach {url}: Connection refused; start `headroom serve`")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--user", "u", "--user-defaults", "--add", "producer_byte_rate=1"], "user is given more than once"),
        (["--user", "", "--add", "producer_byte_rate=1"], "Empty user not supported"),
        (["--names", "ip=10.0.0.1", "--add", "connection_creation_rate=1"], "the recording has bytes"),
        (["--user", "u", "--add", "request_percentage=1"], "request_percentage cannot"),
        (["--user", "u", "--add", "producer_byte_rate=1", "--since", "yesterday"], "cannot read the duration"),
        (["--user", "u", "--add", "producer_byte_rate=1", "--from", "1"], "--from and --to go together"),
        (["--user", "u", "--add", "producer_byte_rate=1", "--from", "5", "--to", "4"], "nothing lies between"),
        (["--user", "u", "--add", "producer_byte_rate=1", "--url", "ftp://h"], "is not http(s)://"),
    ],
)
def test_invalid_flags_exit_with_2(arguments: list[str], message: str) -> None:
    assert message in refused(2, *arguments)
