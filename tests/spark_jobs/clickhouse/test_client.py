"""ClickHouse URLs: validation, credentials, and which parts appear in messages."""

from __future__ import annotations

import base64
import socket
import threading

import pyarrow as pa
import pytest

from spark_jobs.clickhouse.client import ClickHouse, SourceError


def test_name_and_repr_hide_user_and_password() -> None:
    clickhouse = ClickHouse("https://bob@ch.example:8443/headroom", "hunter3")
    assert clickhouse.name == "https://ch.example:8443"
    assert "hunter" not in repr(clickhouse)
    with pytest.raises(ValueError, match="must not contain a password") as refused:
        ClickHouse("https://bob:hunter2@ch.example:8443/headroom")
    assert "hunter" not in str(refused.value)


def authorization(url: str, password: str, *, read: bool) -> str:
    """The Authorization of the first request to a server at {address}."""
    requests: list[bytes] = []

    def listen(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            requests.append(connection.recv(65_536))
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = threading.Thread(target=listen, args=(server,))
        listener.start()
        clickhouse = ClickHouse(url.format(address=f"127.0.0.1:{server.getsockname()[1]}"), password)
        with pytest.raises(SourceError) as failed:
            if read:
                list(clickhouse.batches("SELECT 1", {}))
            else:
                clickhouse.insert("job_runs", pa.table({"job": ["x"]}), token="t")
        listener.join()
    assert "secret" not in str(failed.value)
    (line,) = [line for line in requests[0].decode().split("\r\n") if line.lower().startswith("authorization: ")]
    return base64.b64decode(line.split()[-1]).decode()


@pytest.mark.parametrize("read", [True, False])
def test_user_comes_from_the_url(read: bool) -> None:
    assert authorization("http://b%40b@{address}", "secret", read=read) == "b@b:secret"
    assert authorization("http://bob@{address}/headroom", "secret", read=read) == "bob:secret"
    assert authorization("http://{address}", "secret", read=read) == "default:secret"
