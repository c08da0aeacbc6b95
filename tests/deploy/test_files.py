"""deploy/: the Containerfile, the compose file and the systemd units are valid, and refer to existing things.

The locks: that of the demo and those of the images are parts of that of the tests, and have all that they need.
"""

import configparser
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headroom.config.sources import load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent


def checked(*argv: str | Path) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign] # as configparser documents it
    parser.read(DEPLOY / "systemd" / name)
    return parser


def test_containerfile_passes_hadolint() -> None:
    checked(BIN / "hadolint", DEPLOY / "Containerfile")


def test_compose_file_matches_its_schema() -> None:
    checked(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_compose_mounts_exist() -> None:
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            if volume.startswith("./"):
                assert (DEPLOY / volume.split(":")[0]).exists() and volume.endswith(":ro,z"), volume
    kafka = compose()["services"]["kafka"]
    assert kafka["volumes"] == [f"kafka-data:{kafka['environment']['KAFKA_LOG_DIRS']}"]


def test_compose_pins_images_and_contains_no_passwords() -> None:
    services = compose()["services"]
    assert [name for name, service in services.items() if "build" in service] == ["headroom"]  # two would race
    for name, service in services.items():
        assert name.startswith("headroom") or re.match(r"docker\.io/.+:v?\d+\.\d+", service["image"]), name
        for key, value in (service.get("environment") or {}).items():
            assert not re.search("PASSWORD|TOKEN", key) or re.fullmatch(r"\$\{\w+:\?.+\}", value), f"{name}: {key}"


CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
OF_IMAGE = dict(re.findall(r"^(?:ENV)? +(HEADROOM_\w+)=(\S+)", CONTAINERFILE, re.M))
OF_COMPOSE = OF_IMAGE | compose()["services"]["headroom"]["environment"]


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (compose()["services"]["headroom"]["command"], OF_COMPOSE),
        (unit("headroom.service")["Service"]["ExecStart"].split()[1:], {}),
        (re.findall(r'"([^"]+)"', re.findall(r"^CMD (.+)$", CONTAINERFILE, re.M)[0]), OF_IMAGE),
    ],
    ids=["compose", "systemd", "image"],
)
def test_start_commands_are_accepted_by_serve(
    command: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command[0] == "serve"
    flags = re.findall(r"--([a-z-]+)[ =](\S+)", " ".join(command[1:]))
    given = {name.replace("-", "_"): value for name, value in flags}
    assert given.pop("config", None) in (None, "/etc/headroom/headroom.yaml")
    for name, value in environment.items():
        monkeypatch.setenv(name, re.sub(r"\$\{\w+:[-?](.+)\}", r"\1", value))
    assert load(None, given).data == Path("/var/lib/headroom")


def test_store_neither_delays_nor_ends_the_service_of_kafka() -> None:
    assert re.findall(r"9644(/[a-z/]+)", CONTAINERFILE) == ["/readyz/kafka"]
    assert compose()["services"]["headroom"]["depends_on"] == ["kafka", "clickhouse"]  # started, not healthy
    assert compose()["services"]["headroom"]["healthcheck"]["test"][3] in CONTAINERFILE  # podman's images have none
    assert unit("headroom.service")["Unit"]["StartLimitIntervalSec"] == "0"


def test_systemd_units_are_hardened_and_stop_gracefully() -> None:
    service = unit("headroom.service")["Service"]
    hardened = ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables")
    assert all(service[key] == "yes" for key in hardened)
    assert (service["User"], service["KillSignal"], service["ProtectSystem"]) == ("headroom", "SIGTERM", "strict")
    assert service["CapabilityBoundingSet"] == ""
    assert "MemoryDenyWriteExecute" not in service
    assert unit("headroom-job.timer")["Timer"]["OnCalendar"]


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
