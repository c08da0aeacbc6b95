"""The locks: that of the demo and that of the image are parts of that of the tests, and have all that they need."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]
EVERYTHING: Final = "requirements.txt"
PARTS: Final = {
    "requirements-demo.txt": {"checkout"},
    "deploy/requirements.txt": {"embedded", "spark"},
    "deploy/requirements-gateway.txt": set(),
}
HEADROOM: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

_PINNED = re.compile(r"^([\w.-]+)==(\S+?)(?: ; .*?)? \\\n((?:    --hash=\S+(?: \\)?\n?)+)", re.MULTILINE)


def pinned(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes of each package."""
    found = _PINNED.findall((ROOT / lock).read_text())
    return {name: (version, frozenset(re.findall(r"sha256:\w+", hashes))) for name, version, hashes in found}


def own_requirements(extras: set[str]) -> list[Requirement]:
    named = [
        *HEADROOM["dependencies"],
        *(text for extra in extras for text in HEADROOM["optional-dependencies"][extra]),
    ]
    return [Requirement(text) for text in named]


def needed(extras: set[str]) -> set[str]:
    """The names of all packages that headroom[extras] needs here, by what installed packages say of themselves."""
    waiting, seen = own_requirements(extras), set()
    names: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        name, key = canonicalize_name(wanted.name), str(wanted)
        if key in seen:
            continue
        seen.add(key)
        if name == HEADROOM["name"]:
            waiting += own_requirements(wanted.extras)
            continue
        names.add(name)
        for text in metadata.requires(name) or ():
            further = Requirement(text)
            environments = [{"extra": extra} for extra in ("", *wanted.extras)]
            if further.marker is None or any(further.marker.evaluate(environment) for environment in environments):
                waiting.append(further)
    return names


@pytest.mark.parametrize(("lock", "extras"), PARTS.items())
def test_part_has_what_its_extras_need_and_nothing_else(lock: str, extras: set[str]) -> None:
    every, part = pinned(EVERYTHING), pinned(lock)
    assert part.items() <= every.items()
    assert part.keys() >= needed(extras)
    of_other_platforms = set(re.findall(r"^([\w.-]+)==\S+ ; ", (ROOT / lock).read_text(), re.MULTILINE))
    assert part.keys() - needed(extras) - of_other_platforms == set()


def test_demo_has_no_tool_of_the_tests() -> None:
    tools = {canonicalize_name(Requirement(text).name) for text in HEADROOM["optional-dependencies"]["dev"]}
    assert tools & pinned("requirements-demo.txt").keys() == set()


@pytest.mark.parametrize("lock", [EVERYTHING, "requirements-demo.txt"])
def test_size_of_what_is_loaded_is_said(lock: str) -> None:
    assert re.match(r"# [\d,]+ MB to load\n", (ROOT / lock).read_text())
    assert "index-url" not in (ROOT / lock).read_text()
