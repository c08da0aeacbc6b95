"""Addresses and passwords of ClickHouse servers: which are accepted, which are printed, and which user may write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from exporters.clickhouse.client import with_writer
from exporters.clickhouse.connection import Endpoint, password_of
from tests.kit.fake_clickhouse import fake_clickhouse, http


def test_endpoint_has_default_ports_and_user() -> None:
    assert Endpoint.parse("http://h") == Endpoint("http", "h", 8123)
    assert Endpoint.parse("https://h/headroom/") == Endpoint("https", "h", 8443)
    named = Endpoint.parse("http://us%40er@[::1]:1/headroom", "pass")
    assert named == Endpoint("http", "::1", 1, "us@er", "pass")
    assert (str(named), named.netloc, named.url) == ("http://[::1]:1", "[::1]:1", "http://us%40er@[::1]:1/headroom")
    assert Endpoint.parse(named.url, "pass") == named
    assert "pass" not in repr(named)


@pytest.mark.parametrize(
    "url",
    [
        "", "clickhouse:9000", "http://", "ftp://h/headroom", "http://h:x", "http://h:0", "http://h:99999",
        "http://h:1/a/b", "http://h/with-dash", "http://h/system",
        "http://h/INFORMATION_SCHEMA", "http://h/9", "http://h/?user=u", "http://h/#f",
    ],
)  # fmt: skip
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"is not http|names more than a server"):
        Endpoint.parse(url)


def test_url_may_name_another_database() -> None:
    other = Endpoint.parse("http://h/ops_2")
    assert (other.database, Endpoint.parse("http://h").database) == ("ops_2", "headroom")
    assert other.url == "http://h:8123/ops_2"
    with pytest.raises(ValueError, match="these have headroom, ops"):
        Endpoint.parse_nodes("http://a,http://b/ops")


@pytest.mark.parametrize("url", ["http://u:hidden@h", "http://:hidden@h:1/headroom", "ftp://u:hidden@", "http://u:@h"])
def test_password_in_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match="HEADROOM_CLICKHOUSE_PASSWORD_FILE") as refused:
        Endpoint.parse(url)
    assert "hidden" not in str(refused.value)


def test_password_is_read_from_environment_or_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("pä ss\n")
    assert password_of({}) == ""
    assert password_of({"HEADROOM_CLICKHOUSE_PASSWORD": "x"}) == "x"
    assert password_of({"HEADROOM_CLICKHOUSE_PASSWORD_FILE": str(tmp_path / "secret")}) == "pä ss"
    with pytest.raises(FileNotFoundError):
        password_of({"HEADROOM_CLICKHOUSE_PASSWORD_FILE": str(tmp_path / "nowhere")})
    with pytest.raises(ValueError, match="not both"):
        password_of({"HEADROOM_CLICKHOUSE_PASSWORD": "x", "HEADROOM_CLICKHOUSE_PASSWORD_FILE": str(tmp_path)})


@contextmanager
def naming(file: Path) -> Iterator[str]:
    """A server that names this file; its URL."""
    with fake_clickhouse(http(orjson.dumps({"file": str(file)}) + b"\n")) as fake:
        yield fake.url


def test_local_server_provides_writer_credentials(tmp_path: Path) -> None:
    file = tmp_path / "writer.password"
    file.write_text("0" * 64 + "\n")
    with naming(file) as url:
        writer = with_writer(Endpoint.parse(url))
        assert (writer.user, writer.password) == ("headroom_writer", "0" * 64)
        assert with_writer(Endpoint.parse(url.replace("//", "//me@"), "mine")).password == "mine"


@pytest.mark.parametrize(("name", "content"), [("writer.password", "root:x:0:0"), ("id_rsa", "0" * 64)])
def test_writer_password_is_read_only_from_a_valid_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with naming(tmp_path / name) as url:
        assert with_writer(Endpoint.parse(url)) == Endpoint.parse(url)


def test_remote_server_is_not_queried_for_a_writer() -> None:
    assert with_writer(Endpoint.parse("http://clickhouse.example:1")) == Endpoint.parse("http://clickhouse.example:1")


def test_unreachable_server_has_no_writer() -> None:
    assert with_writer(Endpoint.parse("http://127.0.0.1:1")) == Endpoint.parse("http://127.0.0.1:1")
