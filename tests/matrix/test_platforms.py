"""The short form of `make matrix-platforms`: a profile of each kind, to a level on the page or refused by name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.platforms.profiles import ForeignServer
from tests.matrix.platforms import PLATFORMS, outcome, servers

pytestmark = [pytest.mark.release, pytest.mark.clickhouse, pytest.mark.slow]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForeignServer, ForeignServer]]:
    with servers(tmp_path_factory.mktemp("platforms")) as both:
        yield both


@pytest.mark.parametrize("name", ["SQL-like NULLs", "chproxy", "hardened, other values", "two servers behind one URL"])
def test_platform_works_or_is_refused_by_name(
    at: tuple[ForeignServer, ForeignServer], name: str, tmp_path: Path
) -> None:
    assert outcome(name, at, tmp_path) == ("refused" if PLATFORMS[name].refused else "works")
