"""The kafka-configs.sh line that alters a client quota. Pure text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

_ENTITY_TYPES = {"user": "users", "client-id": "clients", "ip": "ips"}


def kafka_configs_line(entity: Sequence[tuple[str, str | None]], quota_key: str, value: float | None) -> str:
    """`entity`: (user, client-id or ip; its name, None for the default entity). `value` None removes the quota.

    Names are quoted for a POSIX shell. Raises KeyError for other kinds.
    """
    names = " ".join(
        f"--entity-type {_ENTITY_TYPES[kind]} "
        + ("--entity-default" if name is None else f"--entity-name {shlex.quote(name)}")
        for kind, name in entity
    )
    change = f"--delete-config {quota_key}"
    if value is not None:
        # A fraction, as of a percentage, is not rounded.
        change = f"--add-config {quota_key}={f'{value:.0f}' if value.is_integer() else repr(value)}"
    return f"kafka-configs.sh --bootstrap-server HOST:PORT --alter {names} {change}"
