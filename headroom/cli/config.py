"""`headroom config check | show | reference | reload`: validates, prints, documents and reloads the settings."""

import re
from contextlib import suppress
from enum import Enum
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headroom.cli.options import DEFAULT_DATA, Data, fail

app = typer.Typer(help="Check, show and explain the settings of `headroom serve`.", no_args_is_help=True)

_File = Annotated[Path | None, typer.Option("--config", help="YAML file; HEADROOM_* variables override it.")]
_MASK = "********"
_RELOAD_NS = 60_000_000_000


def _loaded(file: Path | None, *, with_files: bool = False) -> Any:
    from headroom.config.settings import ConfigError
    from headroom.config.sources import load
    from headroom.server.startup_check import checked

    try:
        return checked(partial(load, file, {})) if with_files else load(file, {})
    except ConfigError as exc:
        raise fail(*exc.faults, code=2) from exc


@app.command()
def check(config: _File = None) -> None:
    """Prints ok, or each fault on a line and exits with 2. Reads the files that the settings name; opens nothing."""
    _loaded(config, with_files=True)
    typer.echo("ok")


@app.command()
def show(config: _File = None) -> None:
    """Prints the settings in force as YAML, secrets masked."""
    import yaml

    typer.echo(yaml.safe_dump(_plain(_loaded(config)), sort_keys=False), nl=False)


@app.command()
def reference(
    output: Annotated[Literal["markdown", "json"], typer.Option(help="Markdown, or JSON.")] = "markdown",
) -> None:
    """Prints every setting with its default, kind, variable and meaning."""
    from headroom.config.reference import as_markdown, settings

    if output == "json":
        import json

        typer.echo(json.dumps([setting._asdict() | {"variable": setting.variable} for setting in settings()], indent=2))
    else:
        typer.echo(as_markdown(), nl=False)


@app.command()
def reload(data: Data = DEFAULT_DATA) -> None:
    """Tells `headroom serve` to read its settings again, as SIGHUP does; prints what changed and what needs a restart.

    Exit 1 when it does not run or the new settings have faults, which are printed: then nothing changes.
    """
    result = _reloaded(data)
    for name in result["reloaded"]:
        typer.echo(f"reloaded: {name}")
    for name in result["needs_restart"]:
        typer.echo(f"needs a restart: {name}")
    if result["faults"]:
        raise fail(*result["faults"])


def _reloaded(data: Path) -> dict[str, Any]:
    """The result, which the process writes next to its lock."""
    import fcntl
    import os
    import signal
    import time

    import orjson

    from headroom.server.reload import RESULT

    try:
        with (data / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        raise fail(f"no headroom serves {data}")
    except BlockingIOError:
        pid = int((data / "lock").read_text().strip() or 0)
    except OSError as exc:
        raise fail(f"{data}: {exc.strerror}") from exc
    if pid <= 1:  # 0 would signal this command's own group
        raise fail(f"{data / 'lock'} names no process")
    began_ns = time.time_ns()
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as exc:
        raise fail(f"process {pid}: {exc.strerror}") from exc
    while time.time_ns() < began_ns + _RELOAD_NS:
        time.sleep(0.05)
        with suppress(OSError):
            result: dict[str, Any] = orjson.loads((data / RESULT).read_bytes())
            if result["pid"] == pid and result["at_ns"] > began_ns:
                return result
    raise fail(f"process {pid} does not answer; its log says why")


def _plain(value: Any) -> Any:
    """Converts settings to YAML types. Passwords are masked, by type or by name."""
    from pydantic import BaseModel, SecretStr

    from headroom.config.settings import Address

    if isinstance(value, SecretStr):
        return _MASK
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Address | Path | IPv4Network | IPv6Network):
        return str(value)
    if isinstance(value, str):
        return re.sub(r"(//[^/@:]*:)[^/]*@", rf"\1{_MASK}@", value)  # the password of a URL
    if isinstance(value, BaseModel):
        return {name: _masked(name, getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {str(key): _masked(str(key), item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _masked(name: str, value: Any) -> Any:
    is_secret = name.endswith(("password", "token", "secret")) and isinstance(value, str) and value
    return _MASK if is_secret else _plain(value)
