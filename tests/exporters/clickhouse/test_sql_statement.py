from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.clickhouse.errors import Code
from exporters.clickhouse.sql_statement import Kind, StatementError, parse


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("select 1", Kind.SELECT),
        ("(SELECT 1) UNION ALL (SELECT 2)", Kind.SELECT),
        ("WITH 1 AS x SELECT x", Kind.SELECT),
        ("FROM numbers(3) SELECT number", Kind.SELECT),
        ("/* a /* nested */ comment */ -- and\n# another\nSELECT 1", Kind.SELECT),
        ("SHOW TABLES", Kind.SHOW),
        ("describe table t", Kind.SHOW),
        ("EXPLAIN SELECT 1", Kind.SHOW),
        ("CREATE TABLE t (a Int8) ENGINE = Memory", Kind.COMMAND),
        ("INSERT INTO t SELECT 1", Kind.COMMAND),
        ("WITH 1 AS x INSERT INTO t SELECT x", Kind.COMMAND),
        ("INSERT INTO t (a) FORMAT TSV\n1", Kind.INSERT),
        ("INSERT INTO t VALUES (1)", Kind.INSERT),
    ],
)
def test_kinds(text: str, kind: Kind) -> None:
    assert parse(text).kind is kind


@pytest.mark.parametrize(
    ("text", "sql", "output_format", "tail"),
    [
        ("SELECT 1", "SELECT 1", "", ""),
        ("SELECT 1;", "SELECT 1", "", ""),
        ("SELECT 1 format JSON", "SELECT 1 ", "JSON", ""),
        ("SELECT 1 FORMAT JSON SETTINGS a = 1; -- end", "SELECT 1 ", "JSON", " SETTINGS a = 1"),
        ("SELECT 1 SETTINGS a = 1 FORMAT CSV", "SELECT 1 SETTINGS a = 1 ", "CSV", ""),
        ("SELECT format FROM t", "SELECT format FROM t", "", ""),
        ("SELECT 1 AS format", "SELECT 1 AS format", "", ""),
        ("SELECT 'x FORMAT JSON'", "SELECT 'x FORMAT JSON'", "", ""),
        ("SELECT 1 -- FORMAT JSON", "SELECT 1 -- FORMAT JSON", "", ""),
        ("SHOW TABLES FORMAT JSON", "SHOW TABLES ", "JSON", ""),
    ],
)
def test_the_format_clause(text: str, sql: str, output_format: str, tail: str) -> None:
    statement = parse(text)
    assert (statement.sql, statement.format, statement.tail) == (sql, output_format, tail)


@pytest.mark.parametrize(
    ("text", "input_format", "data"),
    [
        ("INSERT INTO t FORMAT TSV\n1\n2\n", "TSV", "1\n2\n"),
        ("INSERT INTO t FORMAT TSV \t\r\n\n1", "TSV", "\n1"),
        ("INSERT INTO t FORMAT CSV 1,2", "CSV", "1,2"),
        ("INSERT INTO t (a, `b`) SETTINGS x = 'FORMAT y' FORMAT Native\n\x00\x01'\"`;", "Native", "\x00\x01'\"`;"),
        ("INSERT INTO t (format) FORMAT JSONEachRow {}", "JSONEachRow", "{}"),
        ("INSERT INTO t VALUES (1, ';'), (2, 'file(')", "Values", " (1, ';'), (2, 'file(')"),
        ("INSERT INTO t FORMAT TSV", "TSV", ""),
    ],
)
def test_the_data_of_an_insert(text: str, input_format: str, data: str) -> None:
    statement = parse(text)
    assert statement.format == input_format
    assert text[statement.data_at :] == data
    assert statement.sql == text[: len(statement.sql)]
    assert "FORMAT" not in statement.sql.replace("'FORMAT y'", "")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", Code.SYNTAX_ERROR),
        (" -- nothing\n", Code.SYNTAX_ERROR),
        ("SELECT 1; SELECT 2", Code.SYNTAX_ERROR),
        ("SELECT 1 INTO OUTFILE 'x'", Code.ACCESS_DENIED),
        ("SELECT 1 INTO\u00a0OUTFILE 'x'", Code.ACCESS_DENIED),
        ("SELECT ‘'’ INTO OUTFILE 'x'", Code.ACCESS_DENIED),
        ("SELECT 1 AS a$$b INTO OUTFILE 'x$$'", Code.ACCESS_DENIED),
        ("SELECT 1 /* /* */ ' */ INTO OUTFILE 'x'", Code.ACCESS_DENIED),
        ("SELECT 1 // '\nINTO OUTFILE 'x'", Code.ACCESS_DENIED),
        ("INSERT INTO t FROM INFILE 'x' FORMAT TSV", Code.ACCESS_DENIED),
        ("SELECT file('/etc/passwd')", Code.ACCESS_DENIED),
        ("SELECT `file` /**/ ('/etc/passwd')", Code.ACCESS_DENIED),
        ("SELECT * FROM Python(rows)", Code.ACCESS_DENIED),
        ("INSERT INTO t SELECT file('/etc/passwd')", Code.ACCESS_DENIED),
    ],
)
def test_what_is_refused(text: str, code: Code) -> None:
    with pytest.raises(StatementError) as refused:
        parse(text)
    assert refused.value.code is code
    assert str(refused.value).startswith(f"Code: {code.value}. DB::Exception: ")


def test_names_in_strings_and_columns_are_no_calls() -> None:
    for text in ("SELECT 'file(1)'", "SELECT file FROM t", "SELECT 'INTO OUTFILE'", "SELECT filesystem(1)"):
        assert parse(text).kind is Kind.SELECT


@given(st.text(alphabet="aA1 \n'\"`\\$/*-#();,“”‘’\u00a0", max_size=60).map("SELECT ".__add__))
def test_any_text_is_a_statement_or_refused(text: str) -> None:
    try:
        statement = parse(text)
    except StatementError:
        return
    assert text.startswith(statement.sql)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["'\\", "`\\", "$a", "$$", "/*", "(", "“‘", "''", "--", "1e", "FORMAT ", "\\'"])
def test_a_hostile_text_is_looked_at_once(piece: str) -> None:
    # A quadratic look at any of these takes minutes.
    text = "SELECT " + piece * (400_000 // len(piece))
    try:
        assert parse(text).kind is Kind.SELECT
    except StatementError as exc:
        assert exc.code is Code.SYNTAX_ERROR
