"""Requests that a reader must not make. {secret} and {out} are files outside the server's directory, {trap} a port."""

from __future__ import annotations

FILES = [
    "SELECT 'x' INTO OUTFILE '{out}' FORMAT TSV",
    "SELECT 'x' INTO OUTFILE '{out}' APPEND FORMAT TSV",
    "SELECT file('{secret}')",
    "SELECT `file`('{secret}')",
    "SELECT `fi\\x6ce`('{secret}')",
    "SELECT \"file\"('{secret}')",
    "SELECT $x$ , file('{secret}')",
    "SELECT $x$a$x$, file('{secret}')",
    "SELECT arrayMap(x -> file(x), ['{secret}'])",
    "SELECT arrayMap(file, ['{secret}'])",
    "SELECT * FROM values('a String', (file('{secret}')))",
    "SELECT file('../writer.password')",
    "SELECT file('../../secret')",
    "SELECT * FROM file('{secret}', 'LineAsString')",
    "DESCRIBE file('{secret}')",
    "SELECT * FROM `{secret}`",
    "SELECT * FROM filesystem('{secret}')",
    "SELECT 1 FORMAT Template SETTINGS format_template_row = '{secret}'",
    "SELECT 1 FORMAT Template SETTINGS format_template_row = '../writer.password'",
    "SELECT 1 FORMAT Template SETTINGS format_template_resultset = '../../secret'",
    "SELECT 1 FORMAT Protobuf SETTINGS format_schema = '{secret}:M'",
    "SELECT format_template_row('{secret}')",
    "SELECT * FROM sqlite('{secret}', 't')",
    "SELECT catboostEvaluate('{secret}', 1)",
    "SELECT * FROM executable('cat {secret}', 'TSV', 'a String')",
    "INSERT INTO FUNCTION file('{out}', 'TSV', 'a String') SELECT 'x'",
    "BACKUP DATABASE headroom TO File('{out}')",
    "SELECT * FROM Python(x)",
]

FETCHES = [
    "SELECT * FROM url('http://127.0.0.1:{trap}/', 'TSV', 'a String')",
    "DESCRIBE url('http://127.0.0.1:{trap}/')",
    "SELECT * FROM remote('127.0.0.1:{trap}', system.one)",
    "SELECT * FROM s3('http://127.0.0.1:{trap}/bucket/key')",
    "SELECT * FROM mysql('127.0.0.1:{trap}', 'd', 't', 'u', 'p')",
    "SELECT * FROM postgresql('127.0.0.1:{trap}', 'd', 't', 'u', 'p')",
    "SELECT * FROM mongodb('127.0.0.1:{trap}', 'd', 't', 'u', 'p', 'a Int8')",
    "SELECT * FROM redis('127.0.0.1:{trap}', 'k', 'k String')",
    "SELECT * FROM hdfs('hdfs://127.0.0.1:{trap}/f', 'TSV', 'a String')",
    "CREATE TABLE headroom.w (a Int8) ENGINE = MergeTree ORDER BY a"
    " SETTINGS disk = disk(type = web, endpoint = 'http://127.0.0.1:{trap}/')",
    "CREATE DATABASE w ENGINE = MySQL('127.0.0.1:{trap}', 'd', 'u', 'p')",
]

CHANGES = [
    "INSERT INTO headroom.quota_limits (cluster) VALUES ('x')",
    "DROP TABLE headroom.quota_limits",
    "TRUNCATE TABLE headroom.quota_limits",
    "ALTER TABLE headroom.quota_limits DELETE WHERE 1",
    "DELETE FROM headroom.quota_limits WHERE 1",
    "OPTIMIZE TABLE headroom.points FINAL",
    "DETACH TABLE headroom.quota_limits",
    "ATTACH TABLE headroom.q FROM '/etc' (a Int8) ENGINE = MergeTree ORDER BY a",
    "RENAME TABLE headroom.quota_limits TO headroom.gone",
    "CREATE TABLE headroom.t (a Int8) ENGINE = Memory",
    "CREATE TEMPORARY TABLE t (a Int8)",
    "CREATE VIEW headroom.v AS SELECT 1",
    "CREATE FUNCTION f AS x -> x",
    "CREATE USER u",
    "GRANT ALL ON *.* TO default",
    "KILL QUERY WHERE 1",
    "KILL MUTATION WHERE 1",
    "SYSTEM SHUTDOWN",
    "SYSTEM KILL",
    "SYSTEM RELOAD CONFIG",
    "SYSTEM STOP MERGES headroom.points",
    "SYSTEM FLUSH LOGS",
    "SELECT 1; DROP TABLE headroom.quota_limits",
    "EXECUTE AS headroom_writer SELECT 1",
]

OTHERS = [
    "SELECT * FROM system.users",
    "SELECT * FROM system.grants",
    "SELECT * FROM system.processes",
    "SELECT * FROM system.query_log",
    "SELECT * FROM system.server_settings",
    "SELECT * FROM system.replicas",
    "SELECT * FROM system.zookeeper WHERE path = '/'",
    "SHOW CREATE USER headroom_writer",
    "SHOW GRANTS FOR headroom_writer",
    "SELECT addressToSymbol(1)",
    "SELECT demangle('x')",
]

BOMBS = [
    "SELECT groupArray(number) FROM numbers(10000000000)",
    "SELECT arrayMap(x -> repeat('x', 1000000), range(1000000))",
    "SELECT length(repeat('a', 100000000000))",
    "SELECT count() FROM numbers(100000) a CROSS JOIN numbers(1000000000) b",
    "SELECT sipHash64(number) FROM numbers(100000000000) ORDER BY 1 FORMAT Null",
    "SELECT uniqExact(sipHash64(number)) FROM numbers(100000000000)",
    "SELECT range(number) FROM numbers(1000000000) FORMAT Null",
    "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r) SELECT count() FROM r",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT " + "-" * 1 + "(-" * 3000 + "1" + ")" * 3000,
    "SELECT 1" + " UNION ALL SELECT 1" * 30_000,
]

# Settings, formats and users in the query string of `SELECT 1`.
PARAMETERS: list[dict[str, object]] = [
    {"default_format": "CSVWithNames; SELECT 'x' INTO OUTFILE '{out}' APPEND FORMAT TSV"},
    {"default_format": "TSV; DROP TABLE headroom.quota_limits"},
    {"database": "headroom; DROP TABLE headroom.quota_limits"},
    {"max_memory_usage": 0},
    {"max_memory_usage": 1 << 40},
    {"max_memory_usage_for_user": 0},
    {"max_execution_time": 0},
    {"max_execution_time": 86_400},
    {"max_result_bytes": 0},
    {"max_result_bytes": 1 << 40},
    {"max_concurrent_queries_for_user": 0},
    {"workload": "pages"},
    {"workload": "default"},
    {"max_temporary_data_on_disk_size_for_query": 0},
    {"max_parser_depth": 0},
    {"max_parser_backtracks": 0},
    {"max_threads": 5_000},
    {"max_final_threads": 5_000},
    {"max_untracked_memory": 1 << 40},
    {"http_send_timeout": 0},
    {"http_send_timeout": 86_400},
    {"receive_timeout": 0},
    {"session_id": "s", "session_timeout": 86_400},
    {"result_overflow_mode": "break"},
    {"timeout_overflow_mode": "break"},
    {"readonly": 0},
    {"readonly": 1, "max_execution_time": 0},
    {"allow_ddl": 1},
    {"allow_introspection_functions": 1},
    {"add_http_cors_header": 1},
    {"http_response_headers": "{{'Access-Control-Allow-Origin': '*'}}"},
    {"profile": "writer"},
    {"profile": "base"},
    {"role": "admin"},
    {"user": "headroom_writer"},
    {"user": "headroom_writer", "password": "guess"},
]

# Headers of pages of other sites, and of callers that forge an identity.
HEADERS: list[dict[str, str]] = [
    {"Host": "attacker.example"},
    {"Host": "attacker.example:8123"},
    {"Host": "127.0.0.1.attacker.example"},
    {"Host": "localhost.attacker.example"},
    {"Host": ""},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://attacker.example"},
    {"Origin": "null"},
    {"Origin": "https://127.0.0.1.attacker.example"},
    {"X-ClickHouse-Format": "TSV; DROP TABLE headroom.quota_limits"},
    {"X-ClickHouse-User": "headroom_writer", "X-ClickHouse-Key": "guess"},
    {"Authorization": "Basic aGVhZHJvb21fd3JpdGVyOg=="},
]

# The server closes these connections after `http_receive_timeout`.
HALF_REQUESTS = {
    "half a body": b"POST /?query= HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nSELECT 1",
    "half a chunked body": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nSELECT 1\r\n",
    "half a header": b"POST / HTTP/1.1\r\nHost: local",
    "nothing": b"",
}

# 1 GB for a reader that does not read it.
LONG_ANSWER = b"GET /?query=SELECT+repeat('x',1000)+FROM+numbers(1000000) HTTP/1.1\r\nHost: localhost\r\n\r\n"
