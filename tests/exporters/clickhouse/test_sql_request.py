from __future__ import annotations

import pytest

from exporters.clickhouse.errors import Code
from exporters.clickhouse.sql_request import SqlRequest, content_type, exception_block, read_request
from exporters.clickhouse.sql_statement import Kind, StatementError


def ask(fields: dict[str, str], head: bytes = b"", *, method: str = "POST", complete: bool = True) -> SqlRequest:
    return read_request(
        method, fields, head, complete=complete, defaults={"max_execution_time": "60"}, database="headroom"
    )


def test_a_statement_in_the_body() -> None:
    request = ask({}, b"SELECT 1")
    assert request.statement.sql == "SELECT 1"
    assert request.output_format == "TabSeparated"
    assert request.database == "headroom"
    assert request.settings == {"max_execution_time": "60"}
    assert not request.whole


def test_the_query_goes_before_the_body() -> None:
    request = ask({"query": "INSERT INTO t FORMAT TSV"}, b"1\n\xff\x00")
    assert request.statement.kind is Kind.INSERT
    assert request.statement.sql == "INSERT INTO t "
    assert request.data == b"1\n\xff\x00"


def test_binary_data_behind_a_statement_stays_as_it_is() -> None:
    data = bytes(range(256)) * 3
    assert ask({}, b"INSERT INTO t FORMAT Native\n" + data).data == data


def test_a_character_that_is_cut_by_the_end_of_the_head() -> None:
    data = "ü".encode()
    assert ask({}, b"INSERT INTO t FORMAT TSV\n" + data[:1], complete=False).data == data[:1]


def test_formats() -> None:
    assert ask({"default_format": "JSON"}, b"SELECT 1").output_format == "JSON"
    assert ask({"default_format": "JSON"}, b"SELECT 1 FORMAT CSV").output_format == "CSV"
    assert content_type("JSON").startswith("application/json")
    assert content_type("PrettyCompact").startswith("text/plain")


def test_settings_are_what_is_left_and_win_over_defaults() -> None:
    fields = {"max_execution_time": "5", "param_x": "1", "session_id": "s", "user": "u", "query_id": "q"}
    request = ask(fields, b"SELECT 1")
    assert request.settings == {"max_execution_time": "5", "param_x": "1"}
    assert request.query_id == "q"


def test_a_get_is_read_only() -> None:
    fields = {"query": "SELECT 1", "readonly": "0"}
    assert ask(fields, method="GET").settings["readonly"] == "2"
    assert ask(fields).settings["readonly"] == "0"


@pytest.mark.parametrize("name", ["a b", "a=1, b", "", "1a", "a'"])
def test_a_setting_is_an_identifier(name: str) -> None:
    with pytest.raises(StatementError) as refused:
        ask({name: "1"}, b"SELECT 1")
    assert refused.value.code is Code.UNKNOWN_SETTING


def test_a_long_statement_is_refused_but_not_long_data() -> None:
    with pytest.raises(StatementError) as refused:
        ask({}, b"SELECT 1", complete=False)
    assert refused.value.code is Code.QUERY_IS_TOO_LARGE
    assert ask({}, b"INSERT INTO t VALUES (1", complete=False).data == b" (1"


@pytest.mark.parametrize("flag", ["compress", "decompress"])
def test_the_native_compression_is_refused(flag: str) -> None:
    with pytest.raises(StatementError) as refused:
        ask({flag: "1"}, b"SELECT 1")
    assert refused.value.code is Code.NOT_IMPLEMENTED
    assert ask({flag: "0"}, b"SELECT 1").statement.kind is Kind.SELECT


def test_the_exception_block_is_what_clickhouse_connect_looks_for() -> None:
    from clickhouse_connect.driver.transform import extract_exception_with_tag

    message = "Code: 395. DB::Exception: Wörter. (X)"
    assert extract_exception_with_tag(b"data" + exception_block("abcd", message), "abcd") == message
