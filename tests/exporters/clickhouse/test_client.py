"""Which node of a cluster receives a statement, what errors say, and what the client sends."""

import base64
import pickle

import pyarrow as pa
import pytest

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import (
    StoreAwayError,
    StoreError,
    StoreLoginError,
    StoreTooLargeError,
    code_and_message,
    is_permanent,
    store_error,
)
from headroom.demo.processes import LOOPBACK, free_ports
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.fake_clickhouse import FakeClickHouse, fake_clickhouse, http

ONE = http(b'{"one":1}\n')


def of(*fakes: FakeClickHouse | str, patience_s: float = 0.0) -> ClickHouse:
    urls = (fake if isinstance(fake, str) else fake.url for fake in fakes)
    return ClickHouse(tuple(Endpoint.parse(url) for url in urls), patience_s=patience_s)


def test_unreachable_node_fails_over_and_the_next_node_stays_current() -> None:
    with fake_clickhouse(ONE) as second:
        clickhouse = of(f"http://{LOOPBACK}:{free_ports(1)[0]}", second)
        assert clickhouse.rows("SELECT 1 AS one") == [{"one": 1}]
        assert str(clickhouse.current) == second.url
        assert clickhouse.rows("SELECT 1 AS one") == [{"one": 1}]
    with pytest.raises(StoreAwayError, match=r"^cannot reach http://.*: Connection refused$"):
        clickhouse.rows("SELECT 1 AS one")


def test_refused_statement_does_not_fail_over() -> None:
    refusal = http(b"Code: 47. DB::Exception: Unknown x.\n In scope y. (UNKNOWN_IDENTIFIER)\n", "404 Not Found")
    with fake_clickhouse(refusal) as first, fake_clickhouse(ONE) as second:
        clickhouse = of(first, second)
        with pytest.raises(StoreError, match=r"^Code: 47\. DB::Exception: Unknown x\. In scope y\. \(UNK") as refused:
            clickhouse.rows("SELECT x")
        assert refused.value.code == 47
        assert str(clickhouse.current) == first.url
        assert second.requests == []


def test_refused_login_is_an_error_of_its_own() -> None:
    refusal = http(b"Code: 516. DB::Exception: bob: Authentication failed. (AUTHENTICATION_FAILED)", "403 Forbidden")
    with (
        fake_clickhouse(refusal) as fake,
        pytest.raises(StoreLoginError, match=r"^http://127.* refuses user 'bob': wrong password, or there is no such"),
    ):
        of(fake.url.replace("//", "//bob@")).rows("SELECT 1")


def test_server_that_answered_before_is_asked_again_for_a_while() -> None:
    port = free_ports(1)[0]
    never = of(f"http://{LOOPBACK}:{port}", patience_s=30.0)
    with pytest.raises(StoreAwayError):
        never.rows("SELECT 1 AS one")
    with fake_clickhouse(b"") as fake:
        patient = of(fake, patience_s=1.0)
        patient._has_answered = True
        with pytest.raises(StoreAwayError):
            patient.rows("SELECT 1 AS one")
        assert len(fake.requests) > 1


def test_answer_of_another_kind_of_server_is_an_error_of_one_line() -> None:
    for response in (http(b"<html>\n", "503 Service Unavailable"), b"\x00 not HTTP\r\n\r\n", http(b"abc")[:-1], b""):
        with fake_clickhouse(response) as fake, pytest.raises(StoreError) as failed:
            of(fake).rows("SELECT 1 AS one")
        assert "\n" not in str(failed.value)


def test_too_large_answer_is_an_error() -> None:
    with fake_clickhouse(http(b"{}\n" * 100)) as fake:
        assert len(of(fake).rows("SELECT 1", max_bytes=300)) == 100
        with pytest.raises(StoreError, match="exceeds"):
            of(fake).rows("SELECT 1", max_bytes=299)


def test_every_statement_names_the_database_and_the_user() -> None:
    with fake_clickhouse(ONE) as fake:
        endpoint = Endpoint.parse(f"{fake.url.replace('//', '//b%40b@')}/ops", "secret")
        clickhouse = ClickHouse((endpoint,))
        clickhouse.rows("SELECT 1 AS one")
        with pytest.raises(StoreError, match="confirmed 0 of 1"):
            clickhouse.insert("job_runs", pa.table({"job": ["x"]}), token="t")
        clickhouse.command("SYSTEM FLUSH LOGS")
        with pytest.raises(StoreError):
            list(clickhouse.batches("SELECT 1"))
    assert len(fake.requests) == 4
    for request in fake.requests:
        head = request.partition(b"\r\n\r\n")[0].decode()
        assert "database=ops" in head
        (line,) = [line for line in head.split("\r\n") if line.lower().startswith("authorization: ")]
        assert base64.b64decode(line.split()[-1]) == b"b@b:secret"


def test_processes_may_be_sent_a_client() -> None:
    with fake_clickhouse(ONE) as fake:
        clickhouse = of(fake, patience_s=3.0)
        clickhouse.rows("SELECT 1 AS one")
        sent = pickle.loads(pickle.dumps(clickhouse))
        assert (sent, sent._has_answered) == (clickhouse, True)
        assert sent.rows("SELECT 1 AS one") == [{"one": 1}]
    assert "secret" not in repr(ClickHouse((Endpoint.parse("http://me@h", "secret"),)))


@pytest.mark.clickhouse
def test_parameters_reach_the_server_unchanged(clickhouse: RunningClickHouse) -> None:
    hostile = 'it\'s \\ "new"\n\t\r {x:String} %s \0 \N{RIGHT-TO-LEFT OVERRIDE} --'
    reader = ClickHouse((clickhouse.reader,))
    asked = "SELECT {one:String} AS one, {many:Array(String)} AS many, {flag:Bool} AS flag, {number:Int64} AS number"
    parameters = {"one": hostile, "many": [hostile, ""], "flag": True, "number": -(2**60)}
    assert reader.rows(asked, parameters) == [parameters]
    assert reader.rows("SELECT unhex('61FF') AS name") == [
        {"name": "a\N{REPLACEMENT CHARACTER}"}
    ]  # another collector's
    assert reader.rows("SELECT nan AS a, 1 / 0 AS b, toUInt64(-1) AS c") == [{"a": None, "b": None, "c": 2**64 - 1}]


_FORMAT = "Code: 73. DB::Exception: Unknown format Foo. (UNKNOWN_FORMAT)"
_QUOTING = "Code: 395. DB::Exception: said 'Code: 1. DB::Exception: x'. (X)"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (f"Streaming query failed: Code: 73. DB::Exception: {_FORMAT}", 73, _FORMAT),
        (_QUOTING, 395, _QUOTING),
        (" refused\n", 0, "refused"),
    ],
    ids=["the innermost message", "not one that it quotes", "no error of ClickHouse"],
)
def test_code_and_message_are_found_in_the_text_of_an_error(text: str, code: int, message: str) -> None:
    assert code_and_message(text) == (code, message)


def test_errors_about_values_are_permanent_and_all_others_are_not() -> None:
    transient = [0, 8, 10, 16, 20, 32, 33, 44, 50, 53, 60, 159, 210, 241, 243, 252, 497, 516]
    permanent = [6, 27, 41, 72, 117, 321, 349, 376, 469, 691]
    codes = (*transient, *permanent)
    assert [code for code in codes if is_permanent(code, f"Code: {code}. DB::Exception: whatever")] == permanent
    assert is_permanent(252, "Code: 252. DB::Exception: Too many partitions for single INSERT block (more than 1000).")


STATUS = "HTTP driver received HTTP status"
PROXY, OTHER = "a proxy before http://store:8123 answers", "http://store:8123 answers, but not as ClickHouse"
TOO_LARGE = "a proxy before http://store:8123 refuses requests of this size"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (f"{STATUS} 413, server response: <html>413 Request Entity Too Large</html>", StoreTooLargeError, TOO_LARGE),
        (f"{STATUS} 413", StoreTooLargeError, TOO_LARGE),
        (f"{STATUS} 502, server response: 413", StoreAwayError, PROXY),
        (f"{STATUS} 502, server response: <html>Bad Gateway</html>", StoreAwayError, PROXY),
        (f"{STATUS} 503, server response: no healthy upstream", StoreAwayError, PROXY),
        (f"{STATUS} 401", StoreAwayError, PROXY),
        (f"{STATUS} 404, server response: <html>", StoreAwayError, OTHER),
        ("Unexpected response to server version query: '<html>login</html'", StoreAwayError, OTHER),
        ("Received ClickHouse exception, code: 62, server response: Code: 62. DB::Exception: 413", StoreError, "Code"),
        ("Code: 75. DB::ErrnoException: Cannot write to file: No space left on device", StoreError, "Code: 75"),
        ("Code: 999. Coordination::Exception: Session expired", StoreError, "Code: 999"),
        ("Code: 279. DB::NetException: All connection tries failed", StoreAwayError, "http://store:8123: Code: 279"),
    ],
)
def test_who_answers_is_named_and_a_size_that_a_proxy_refuses(text: str, kind: type[StoreError], said: str) -> None:
    error = store_error(ValueError(text), "http://store:8123", "")
    assert type(error) is kind
    assert str(error).startswith(said)
