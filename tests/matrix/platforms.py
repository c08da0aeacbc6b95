"""`python -m tests.matrix.platforms [NAME ...]`: Headroom over other people's ClickHouse, from an empty store to a
level on the page, or refused by name. Each writes its row of the table of docs/clickhouse.md. Exits 1 when one does
neither.

25.8 is a server, as its owner set it up; of 26.9 only the engine can be had (tests/matrix/clickhouse.py): it runs the
schema and the statements of minutes and jobs under the profile, with what a connection sets there. Spark's part is
tests/matrix/spark.py.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import PASSWORD, Endpoint
from exporters.clickhouse.errors import StoreSettingError
from exporters.clickhouse.profile import GREETING, limits_to_send, low_limits, settings_to_send
from headroom.cli.main import app
from tests.kit.clickhouse import QueriedStore, running_clickhouse
from tests.kit.levels import now_ms, sample, write
from tests.kit.platforms.profiles import PASSWORD as SECRET
from tests.kit.platforms.profiles import ForeignServer, Profile, foreign_server
from tests.kit.platforms.proxies import http_proxy, load_balancer
from tests.kit.serving import Served, eventually, page
from tests.matrix import clickhouse as newer
from tests.matrix.page_table import write_cells

PAGE = Path("docs/clickhouse.md")
COLUMNS = ("profile, or what stands before the server", "ClickHouse 25.8", "engine of 26.9")
READER = "read-only reader"
_LEVEL_S = 300.0  # far more than an idle machine needs
ZONE = "Asia/Kolkata"
NULLS = {"join_use_nulls": 1, "aggregate_functions_null_for_empty": 1, "transform_null_in": 1, "group_by_use_nulls": 1}


class Platform(NamedTuple):
    """`refused`: by which words, "" when it works. `before`: what stands before the server."""

    profile: Profile = Profile()
    refused: str = ""
    before: str = ""


PLATFORMS: Mapping[str, Platform] = {
    "plain": Platform(),
    "SQL-like NULLs": Platform(Profile({**NULLS, "data_type_default_nullable": 1, "insert_null_as_default": 0})),
    "compatibility 25.3": Platform(Profile({"compatibility": "25.3"})),
    "compatibility 23.8": Platform(Profile({"compatibility": "23.8"})),
    "small results": Platform(Profile({"max_result_rows": 1000, "result_overflow_mode": "break", "limit": 5})),
    "column names before aliases": Platform(Profile({"prefer_column_name_to_alias": 1})),
    "earlier planner": Platform(Profile({"allow_experimental_analyzer": 0})),
    "other formats": Platform(
        Profile({"output_format_json_quote_64bit_integers": 1, "date_time_output_format": "iso", "extremes": 1})
    ),
    "asynchronous inserts": Platform(Profile({"async_insert": 1, "wait_for_async_insert": 0, "insert_deduplicate": 0})),
    "FINAL and query cache": Platform(Profile({"final": 1, "use_query_cache": 1})),
    "another zone": Platform(Profile({"session_timezone": "America/St_Johns"})),
    "hardened, same values": Platform(
        Profile({"session_timezone": "UTC", "max_threads": 2}, frozenset({"max_threads", "join_use_nulls", "final"}))
    ),
    "hardened, other values": Platform(
        Profile({"join_use_nulls": 1}, frozenset({"join_use_nulls"})), r"join_use_nulls = 1 \(needed: 0\)"
    ),
    READER: Platform(Profile({"readonly": 1, "session_timezone": "UTC"})),
    "gateway with a path": Platform(before="path"),
    "chproxy": Platform(refused="settings of statements do not reach the server", before="chproxy"),
    "proxy that hides errors": Platform(refused="breaks off in the middle looks whole", before="hides"),
    "two servers behind one URL": Platform(refused="2 servers answer at .* do not share", before="balancer"),
}


@contextmanager
def servers(directory: Path) -> Iterator[tuple[ForeignServer, ForeignServer]]:
    """Two that share nothing, in another zone, with a user for each platform."""
    users = {user_of(name): platform.profile for name, platform in PLATFORMS.items()}
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(foreign_server(directory / name, users, {"timezone": ZONE})) for name in ("a", "b")
        )
        yield first, second


def user_of(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def outcome(name: str, at: tuple[ForeignServer, ForeignServer], directory: Path) -> str:
    """`works`, `refused`, or what is wrong, over an empty database of the platform's own."""
    platform = PLATFORMS[name]
    first, second = (server.endpoint(user_of(name), user_of(name).lower()) for server in at)
    if name == READER:
        first = replace(first, user="plain")
    with _before(platform.before, first, second) as endpoint:
        checked = CliRunner().invoke(app, ["store", "check", "--clickhouse", endpoint.url], env={PASSWORD: SECRET})
        serving = Served(directory, "--clickhouse", endpoint.url)
        serving.argv.insert(1, f"{PASSWORD}={SECRET}")
        with serving as served:
            if platform.refused:
                said = eventually(served.ready, lambda ready: bool(re.search(platform.refused, ready[1])))[1]
                is_named = checked.exit_code == 1 and re.search(platform.refused, checked.output)
                return "refused" if is_named else f"{said}; store check says {checked.output}"
            eventually(served.ready, lambda ready: ready[0] == 200)
            level = _level(served, endpoint)
        if name == READER:  # who may change nothing reads what another wrote
            with closing(ClickHouse((replace(first, user=user_of(name)),))) as clickhouse:
                read = clickhouse.rows("SELECT toString(level) AS level FROM headroom_now")
            return "works" if read == [{"level": "critical"}] else str(read)
    return "works" if level == "critical" and checked.exit_code == 0 else f"{level}; {checked.output}"


@contextmanager
def _before(kind: str, first: Endpoint, second: Endpoint) -> Iterator[Endpoint]:
    """The endpoint that Headroom is given."""
    if not kind:
        yield first
        return
    opened = {
        "path": lambda: http_proxy(first, prefix="/clickhouse"),
        "chproxy": lambda: http_proxy(first, drops_settings=True),
        "hides": lambda: http_proxy(first, hides_errors=True),
        "balancer": lambda: load_balancer(first, second),
    }[kind]()
    with opened as url:
        yield replace(first, port=Endpoint.parse(url).port, path="/clickhouse" if kind == "path" else "")


def _level(served: Served, endpoint: Endpoint) -> str:
    """Of a client near its limit in the last minute, as the API has it; its page says the same."""
    with closing(QueriedStore(endpoint)) as store:
        start_ms = now_ms() // 60_000 * 60_000 - 60_000
        write(store, [sample("c", start_ms + 1000 * (second + 1), 950.0) for second in range(60)], "usage")

    def clients() -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(page(served.http, "/api/v1/headroom"))
        return found

    (client,) = eventually(clients, bool, _LEVEL_S)
    assert client["level"] in page(served.http, "/")
    # A minute, or the last 60 seconds, which begin at any; the last row may be the only one of the next minute.
    first, last = (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start_ms / 1000 + after_s)) for after_s in (0, 60))
    assert first <= client["window_start"] <= last, client["window_start"]
    return client["level"]


def of_newer_engine(profile: Profile, directory: Path, asked: list[newer.Asked], expected: list[object]) -> str:
    """The same for 26.9: `works` when its rows are those of a plain 25.8."""
    if "allow_experimental_analyzer" in profile.settings:
        return ""  # it has no other planner, and refuses such a profile itself
    own = [f"SET {name} = '{value}'" for name, value in profile.settings.items() if name != "readonly"]
    own += [f"SET {name} = '{value}'" for name, value in GREETING.items()]  # as a connection reads a profile that cuts
    settings = newer.Asked("settings", "SELECT name, value FROM system.settings", {})
    (rows,) = newer.of_engine(directory / "profile", [settings], own, empty=True)
    server = {row["name"]: newer.EngineSetting(row["value"], int(row["name"] in profile.fixed)) for row in rows}
    try:
        agreed = settings_to_send(server, "plain", "UTC")
        agreed |= limits_to_send(server, dict.fromkeys(low_limits(server), (None, None)))
    except StoreSettingError:
        return "refused"
    sets = [f"SET {name} = '{value}'" for name, value in agreed.items()]
    seen = newer.of_engine(directory / "rows", asked, [*own, *sets])
    other = [each.name for each, here, there in zip(asked, expected, seen, strict=True) if not newer.alike(here, there)]
    return f"other rows: {', '.join(other)}" if other else "works"


def main(names: Sequence[str]) -> int:
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headroom-platforms-") as scratch:
        start_ms = now_ms() // 60_000 * 60_000 - 10 * 60_000
        asked = list(newer.statements(start_ms))
        with running_clickhouse(Path(scratch) / "expected") as plain:
            expected: list[object] = list(newer.of_server(plain, asked))
        with servers(Path(scratch)) as at:
            for name in names:
                directory = Path(scratch) / user_of(name)
                directory.mkdir()
                platform = PLATFORMS[name]
                of_server = outcome(name, at, directory)
                of_engine = ""
                if not platform.before:
                    of_engine = of_newer_engine(platform.profile, directory, asked, expected)
                print(f"{name}: 25.8 {of_server}{of_engine and f', 26.9 {of_engine}'}", flush=True)
                right = ("", "refused" if platform.refused else "works")
                cells = [said if said in right else "fails" for said in (of_server, of_engine)]
                failed += [name] * ("fails" in cells)
                row = {(name, column): cell for column, cell in zip(COLUMNS[1:], cells, strict=True)}
                write_cells(PAGE, COLUMNS, tuple(PLATFORMS), row)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or tuple(PLATFORMS)))
