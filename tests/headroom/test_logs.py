"""Python's own messages on standard error go to the log, without data of hostile clients."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from structlog.testing import capture_logs

from headroom.logs import _unraisable


def reported(error: BaseException, where: object) -> list[dict[str, object]]:
    with capture_logs() as entries:
        _unraisable(SimpleNamespace(exc_value=error, object=where))  # as the hook gets it
    return [dict(entry) for entry in entries]


def test_undecodable_server_name_is_not_logged() -> None:
    try:
        b"gatew\xaby".decode("ascii")
    except UnicodeDecodeError as exc:
        assert reported(exc, b"gatew\xaby") == []


def test_other_unraisable_exceptions_are_logged() -> None:
    (entry,) = reported(RuntimeError("x"), sys)
    assert entry["error"] == "RuntimeError('x')"
