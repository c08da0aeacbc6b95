"""A ClickHouse server with users whose profiles are other people's."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings, write_document
from tests.kit.clickhouse import LaunchedServer, launched

PASSWORD = "only-in-tests"


@dataclass(frozen=True)
class Profile:
    """The settings of a user's profile. `fixed`: those that the user may not set."""

    settings: Mapping[str, str | int] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    bounds: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # `min` and `max`

    def document(self) -> dict[str, Any]:
        constraints = {name: {"const": ""} for name in self.fixed} | {k: dict(v) for k, v in self.bounds.items()}
        return {"session_timezone": "", **self.settings, **({"constraints": constraints} if constraints else {})}


class ForeignServer(LaunchedServer):
    """A server as somebody else set it up: `sections` of its configuration, a user for each profile, who may do all."""

    def __init__(self, directory: Path, profiles: Mapping[str, Profile], sections: Mapping[str, Any]) -> None:
        for name in ("conf.d", "users.d"):
            (directory / name).mkdir(parents=True)
        everywhere = {"password": PASSWORD, "networks": {"ip": "::/0"}, "quota": "default", "access_management": 1}
        document = {
            "profiles": {name: {"readonly": 0, **profile.document()} for name, profile in profiles.items()},
            "users": {name: {**everywhere, "profile": name} for name in profiles},
        }
        write_document(directory / "users.d" / "foreign.xml", document)
        write_document(directory / "conf.d" / "foreign.xml", dict(sections))
        super().__init__(ServerSettings(directory))

    def endpoint(self, user: str, database: str = "headroom") -> Endpoint:
        return Endpoint("http", self.writer.host, self.http_port, user, PASSWORD, database=database)


@contextlib.contextmanager
def foreign_server(
    directory: Path, profiles: Mapping[str, Profile], sections: Mapping[str, Any] = {}
) -> Iterator[ForeignServer]:
    """Runs until the block ends. It dies with the calling thread."""
    directory.mkdir(parents=True, exist_ok=True)
    with launched(ForeignServer(directory, profiles, sections)) as server:
        yield server
