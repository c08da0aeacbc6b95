"""`headroom quarantine list | show | replay`: pushes that could not be decoded or stored, their senders and reasons."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from exporters.model import DropReason, Push, RecordKind
from exporters.printable import json_text, printable
from exporters.spool.records import push_origin, push_record, sender_bytes
from exporters.spool.writer import SpoolFull, SpoolWriter
from headroom.cli.options import DEFAULT_DATA, Data, Output, TableOrJson, one_line_errors, time_text
from headroom.config.settings import SpoolConfig
from headroom.errors import ArgumentError
from telemetry.ingest.progress import REPLAY_WRITER
from telemetry.ingest.quarantine import Held, held

app = typer.Typer(help="Pushes that could not be stored: list, show, replay.", no_args_is_help=True)

_LEAVE = ("compression", "software", "principal", "received")
_HEADINGS = ("id", "received", "reason", "client id", "principal", "software", "compression", "bytes", "cause")
_HEX_BYTES = 16  # per line


@app.command("list")
def list_(
    data: Data = DEFAULT_DATA,
    reason: Annotated[DropReason | None, typer.Option(help="Only pushes dropped for this reason.")] = None,
    client_id: Annotated[str | None, typer.Option(help="Only this client id.")] = None,
    output: TableOrJson = Output.TABLE,
) -> None:
    """List quarantined pushes, newest first."""
    facts = {key: value for key, value in {"reason": reason, "client_id": client_id}.items() if value is not None}
    with one_line_errors(data):
        matching = [push for push in _held(data) if all(push.facts.get(key) == value for key, value in facts.items())]
    if output is Output.JSON:
        documents = [{"id": push.id, **push.facts} for push in matching]
        typer.echo(json_text(documents))
        return
    if matching:
        from exporters.text_table import Layout
        from headroom.cli.output.tables import print_table  # slow to import

        named = ("reason", "client_id", "principal", "software", "compression", "bytes", "cause")
        rows = [
            (push.id, _received(push.facts), *(printable(str(push.facts.get(name, ""))) for name in named))
            for push in matching
        ]
        print_table(
            _HEADINGS,
            rows,
            Layout(numbers=("bytes",), names=("client id", "principal", "software"), leave=_LEAVE, below=("cause",)),
        )
    typer.echo(f"{len(matching)} in quarantine")


@app.command()
def show(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The id that `list` prints, or its first characters.")],
    data: Data = DEFAULT_DATA,
    max_bytes: Annotated[int, typer.Option("--bytes", help="Bytes of the payload to show.", min=0)] = 512,
    payload: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the payload, compressed as received, to a file instead.")
    ] = None,
) -> None:
    """Show the sender of a push, why it was dropped, and its payload."""
    with one_line_errors(data):
        push = _only([push for push in _held(data) if push.id.startswith(id_)], id_)
        content = push.payload()
        facts = {**push.facts, "received_at": _received(push.facts)}
        lines = [f"{key}: {printable(str(value))}" for key, value in facts.items() if key != "received_at_ms"]
        if payload is not None:
            payload.write_bytes(content)
            lines.append(f"payload written to {payload}")
        else:
            for start in range(0, len(content[:max_bytes]), _HEX_BYTES):  # like `hexdump -C`
                part = content[start : min(start + _HEX_BYTES, max_bytes)]
                characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
                lines.append(f"{start:08x}  {part.hex(' '):{3 * _HEX_BYTES - 1}}  |{characters}|")
            lines += [f"and {len(content) - max_bytes} bytes more"] if len(content) > max_bytes else []
        typer.echo("\n".join(lines))


@app.command()
def replay(
    id_: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The id that `list` prints, or its first characters.")
    ] = None,
    data: Data = DEFAULT_DATA,
    reason: Annotated[DropReason, typer.Option(help="Without ID: all pushes dropped for this reason.")] = (
        DropReason.REFUSED
    ),
) -> None:
    """Write pushes to the spool again, after a fix, and remove them from the quarantine. `serve` may be running."""
    with one_line_errors(data):
        candidates = [push for push in _held(data) if push.id.startswith(id_ or "")]
        wanted = (
            [_only(candidates, id_)] if id_ else [push for push in candidates if push.facts.get("reason") == reason]
        )
        try:
            pushes = [push.push() for push in wanted]
        except ValueError as exc:
            raise ArgumentError(str(exc)) from exc
        if pushes:
            _write_to_spool(data / "spool", pushes)
        for push in wanted:
            push.path.unlink(missing_ok=True)
    typer.echo(f"{len(wanted)} pushes sent again")


def _write_to_spool(directory: Path, pushes: Sequence[Push]) -> None:
    """All or none; durable when it returns. Raises OSError, ArgumentError when the spool is full."""
    limits = SpoolConfig()
    spool = SpoolWriter(directory, REPLAY_WRITER, segment_bytes=limits.segment_bytes, max_bytes=limits.push_share)
    try:
        records = []
        for push in pushes:
            sender = sender_bytes(push.connection, push.client_id)
            origin = push_origin(
                push.client_instance_id, push.subscription_id, push.terminating, push.compression_type, sender
            )
            records.append(push_record(push.received_at_ms, origin, push.payload))
        spool.reserve(sum(map(len, records)), len(records))  # else those that fit would be sent by each attempt
        for record in records:
            spool.append(RecordKind.PUSH, record)
    except SpoolFull as exc:
        raise ArgumentError(str(exc)) from exc
    finally:
        spool.close()


def _held(data: Path) -> Iterator[Held]:
    directory = data / "quarantine"
    return held(directory) if directory.is_dir() else iter(())


def _only(candidates: list[Held], id_: str) -> Held:
    if len(candidates) == 1:
        return candidates[0]
    raise ArgumentError(f"{len(candidates) or 'no'} pushes in quarantine have an id that begins with {id_!r}")


def _received(facts: dict[str, Any]) -> str:
    return time_text(facts.get("received_at_ms", 0))
