"""The options of each job: one class per job has the flags that this job uses, and no others.

A field that is `Annotated` with a `typer.Option` is a flag of the command (`cli`). The range of the flags `--since`,
`--from` and `--to` is `when`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import BadParameter, Option

from quota_metrics.suggestion.dimension import Dimension
from quota_metrics.verdict.thresholds import LEVELS, Thresholds
from spark_jobs.time_range import TimeRange

DEFAULT_URL = "http://127.0.0.1:8123"
USAGE_SOURCES = ("gateway", "jmx")
MOST_ROWS = 10_000  # of a report by client, unless more are asked for


def local_file(name: str | Path) -> Path:
    """Raises BadParameter for a URL, from which Path would make the name of a directory."""
    if "://" in str(name):
        raise BadParameter(f"{name} is no file of this machine: copy it from or to there")
    return Path(name)


# Values of --fail-on, best first.
FailOn = StrEnum("FailOn", [(name.upper(), name) for name in LEVELS[LEVELS.index("ok") + 1 :]])  # type: ignore[misc] # mypy wants literals


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Of every job, and all that backtest has. An empty filter matches everything. Raises ValueError for a source that
    does not exist."""

    url: Annotated[str, Option(envvar="HEADROOM_URL", help="SQL endpoint of Headroom, or a ClickHouse server")]
    when: TimeRange
    cluster: Annotated[str, Option(help="this cluster only")] = ""
    source: Annotated[str, Option(help="source of usage: gateway or jmx")] = "gateway"
    master: Annotated[str, Option(help="Spark's master, spark://host:7077; else that of spark-submit or local")] = ""
    password: str = field(default="", repr=False)
    recent: bool = False  # the range ends now: earlier windows with late input are recomputed

    def __post_init__(self) -> None:
        if self.source not in USAGE_SOURCES:
            names = ", ".join(USAGE_SOURCES)
            raise ValueError(f"no source of usage is named {self.source!r}: there are {names}")


@dataclass(frozen=True, slots=True)
class ClientOptions(JobOptions):
    """Of a job that reports clients: throttle-forecast and client-inventory."""

    user: Annotated[str, Option(help="report this user only")] = ""
    client_id: Annotated[str, Option(help="report this client-id only")] = ""
    top: Annotated[
        int, Option(help="most rows, worst first; 0: all (quota-headroom and client-inventory: 10,000)", min=0)
    ] = 0

    @property
    def most(self) -> int:
        """Rows of a report by client."""
        return self.top or MOST_ROWS


@dataclass(frozen=True, slots=True)
class TeamOptions(JobOptions):
    """Of team-report."""

    owners: Annotated[
        Path, Option(parser=local_file, metavar="FILE", help="YAML: which team owns which clients, prices, capacity")
    ] = Path("owners.yaml")


class By(StrEnum):
    """Values of --by."""

    AUTO = "auto"
    USER = Dimension.USER.value
    CLIENT_ID = Dimension.CLIENT_ID.value
    BOTH = Dimension.BOTH.value


@dataclass(frozen=True, slots=True)
class SuggestOptions(JobOptions):
    """Of quota-suggest."""

    by: Annotated[By, Option(help="whom quotas are for; auto: as the rules in force, else by the names")] = By.AUTO
    replay: Annotated[bool, Option(help="replay the recorded bytes under the suggested quotas")] = True


@dataclass(frozen=True, slots=True)
class HeadroomOptions(ClientOptions):
    """Of quota-headroom. Raises ValueError for thresholds that fall and for flags of a stream without `stream`."""

    fail_on: Annotated[FailOn | None, Option(help="exit 4 when a client is at this level or worse")] = None
    stream: Annotated[bool, Option("--stream", help="run continuously as rows arrive")] = False
    steps: Mapping[str, float] = field(default_factory=dict)  # by name, of STEPS that a flag sets
    once: Annotated[bool, Option("--once", help="with --stream: exit when all present rows are processed")] = False

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)  # super() names the class before `slots` made another
        self.thresholds(Thresholds())
        if self.once and not self.stream:
            raise ValueError("--once is for --stream")

    def thresholds(self, stored: Thresholds) -> Thresholds:
        """Those of the store unless a flag gives another. Raises ValueError when they fall."""
        chosen = stored._replace(**self.steps)
        if errors := chosen.errors():
            raise ValueError("; ".join(errors))
        return chosen

    def is_failed_by(self, levels: Collection[str]) -> bool:
        """Whether one of these levels of clients is that of `fail_on` or worse."""
        order = list(FailOn)
        return self.fail_on is not None and any(level in order[order.index(self.fail_on) :] for level in levels)
