"""An external server over https: its CA, certificate login, compression, a database of another name, its backups."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import ANY_DATABASE, WRITER, Compression, Endpoint, StoreOptions, TlsFiles
from exporters.clickhouse.errors import StoreError
from exporters.clickhouse.managed.configuration import ServerSettings, write_document
from exporters.clickhouse.store import Store, TransientWriteError
from headroom.cli.sql import run_sql
from headroom.demo.processes import free_ports
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.certificates import CertificateAuthority
from tests.kit.clickhouse import LaunchedServer, QueriedStore, connected, launched
from tests.kit.points import points

pytestmark = pytest.mark.clickhouse


class Secured(NamedTuple):
    authority: CertificateAuthority
    port: int
    password: str  # of headroom_writer

    def endpoint(self, tls: TlsFiles) -> Endpoint:
        return Endpoint("https", "127.0.0.1", self.port, WRITER, self.password, tls)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory: Path = tmp_path_factory.mktemp("tls")
    authority = CertificateAuthority(directory)
    certificate, key = authority.issue("server")
    (port,) = free_ports(1)
    for name in ("conf.d", "users.d"):
        (directory / "clickhouse" / name).mkdir(parents=True)
    openssl = {"certificateFile": certificate, "privateKeyFile": key, "caConfig": authority.ca}
    verify = {"verificationMode": "relaxed", "loadDefaultCAFile": "false"}
    backups = {"allowed_path": str(directory / "backups")}
    sections = {"https_port": port, "openSSL": {"server": {**openssl, **verify}}, "backups": backups}
    write_document(directory / "clickhouse" / "conf.d" / "tls.xml", sections)
    robot = {"ssl_certificates": {"common_name": "robot"}, "profile": "base", "quota": "default"}
    grants = {"grants": {"query": ["GRANT SELECT ON headroom.*"]}, "networks": {"ip": "::/0"}}
    write_document(directory / "clickhouse" / "users.d" / "robot.xml", {"users": {"robot": {**robot, **grants}}})
    owner = {"password": "pass", "profile": "base", "quota": "default", "networks": {"ip": "::/0"}}
    owned = {"grants": {"query": ["GRANT ALL ON ops.*", "GRANT SELECT ON *.*"]}}
    write_document(directory / "clickhouse" / "users.d" / "owner.xml", {"users": {"owner": {**owner, **owned}}})
    with launched(LaunchedServer(ServerSettings(directory / "clickhouse"))) as running:
        secured = Secured(authority, port, running.writer.password)
        store = QueriedStore(secured.endpoint(TlsFiles(ca=str(authority.ca))))
        store.migrate(SCHEMA_VALUES)
        store.close()
        yield secured


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_inserts_over_tls_with_each_compression(server: Secured, compression: Compression) -> None:
    store = QueriedStore(
        server.endpoint(TlsFiles(ca=str(server.authority.ca))), options=StoreOptions(compression=compression)
    )
    store.insert("points", points(f"tls-{compression}", 1000), token=compression)
    where = f"cluster = 'tls-{compression}'"
    rows = store.query(f"SELECT count(), sum(value) FROM headroom.points WHERE {where}")
    assert rows == [(1000, 499_500.0)]
    store.close()


def test_server_certificate_of_unknown_authority_is_refused(server: Secured, tmp_path: Path) -> None:
    for tls in (TlsFiles(), TlsFiles(ca=str(CertificateAuthority(tmp_path).ca))):
        store = QueriedStore(server.endpoint(tls))
        with pytest.raises(TransientWriteError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            store.insert("points", points("never", 1), token="never")
        with pytest.raises(ConnectionError):
            ClickHouse((server.endpoint(tls),)).rows("SELECT 1 AS one")


def test_user_authenticates_by_certificate(server: Secured, capfd: pytest.CaptureFixture[str]) -> None:
    certificate, key = (str(file) for file in server.authority.issue("robot"))
    tls = TlsFiles(str(server.authority.ca), certificate, key)
    robot = Endpoint("https", "127.0.0.1", server.port, "robot", "", tls)
    assert Store(robot).rows("SELECT currentUser() AS user") == [{"user": "robot"}]
    files = {"CA": tls.ca, "CERTIFICATE": certificate, "KEY": key}
    variables = {f"HEADROOM_CLICKHOUSE_TLS__{name}": file for name, file in files.items()}
    assert run_sql("SELECT currentUser()", f"https://robot@127.0.0.1:{server.port}", "TSV", variables) == 0
    assert capfd.readouterr().out == "robot\n"


def test_certificate_of_another_user_is_refused(server: Secured) -> None:
    certificate, key = (str(file) for file in server.authority.issue("somebody"))
    somebody = Endpoint(
        "https", "127.0.0.1", server.port, "robot", "", TlsFiles(str(server.authority.ca), certificate, key)
    )
    with pytest.raises(StoreError, match=r"refuses user 'robot': wrong password"):
        Store(somebody).rows("SELECT 1 AS one")


def test_database_of_another_name(server: Secured, capfd: pytest.CaptureFixture[str]) -> None:
    url = f"https://owner@127.0.0.1:{server.port}/ops"
    ca = str(server.authority.ca)
    endpoint = Endpoint.parse(url, "pass", TlsFiles(ca=ca))
    store = QueriedStore(endpoint, options=StoreOptions(retention_days={"points": 3}))
    store.migrate(SCHEMA_VALUES)
    store.migrate(SCHEMA_VALUES)
    store.check()
    store.insert("points", points("ops", 10), token="ops")
    assert store.holds("points", points("ops", 10))
    elsewhere = "SELECT name FROM system.tables WHERE database = 'ops' AND create_table_query LIKE '%headroom.%'"
    assert store.query(elsewhere) == []
    [(ttl,)] = store.query("SELECT engine_full FROM system.tables WHERE database = 'ops' AND name = 'points'")
    assert "toIntervalDay(3)" in ttl
    store.close()
    asked = "SELECT count() AS found FROM points WHERE cluster = 'ops'"  # as all SQL of this repository
    assert ClickHouse((endpoint,)).rows(asked) == [{"found": 10}]
    beside = Endpoint.parse(f"{url[:-4]}/headroom", "pass", TlsFiles(ca=ca))
    assert ClickHouse((beside,)).rows(asked) == [{"found": 0}]
    variables = {"HEADROOM_CLICKHOUSE_TLS__CA": ca, "HEADROOM_CLICKHOUSE_PASSWORD": "pass"}
    assert run_sql("SELECT count() FROM points WHERE cluster = 'ops'", url, "TSV", variables) == 0
    assert capfd.readouterr().out == "10\n"


def test_dropped_database_is_restored_from_a_backup(server: Secured, tmp_path: Path) -> None:
    """The command of docs/install.md. Rows that the backup has and that are inserted again count once with FINAL."""
    endpoint = server.endpoint(TlsFiles(ca=str(server.authority.ca)))
    store = QueriedStore(endpoint)
    store.insert("points", points("backup", 1000), token="backup")
    archive = f"File('{tmp_path.name}')"
    with connected(endpoint) as client:
        client.command(f"BACKUP DATABASE headroom TO {archive}")
        client.command("DROP DATABASE headroom SYNC")
    with connected(endpoint, database=ANY_DATABASE) as client:
        client.command(f"RESTORE DATABASE headroom FROM {archive}")
    store.migrate(SCHEMA_VALUES)
    store.insert("points", points("backup", 1000), token="after")
    rows = store.query("SELECT count(), sum(value) FROM headroom.points FINAL WHERE cluster = 'backup'")
    assert rows == [(1000, 499_500.0)]
    assert store.query("SELECT count() FROM headroom.client_metrics WHERE cluster = 'backup'") == [(2000,)]
    store.close()
