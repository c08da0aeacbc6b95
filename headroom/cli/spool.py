"""`headroom spool status | inspect | skip`: the unfinished records in the spool of a data directory."""

from contextlib import closing
from typing import Annotated

import typer

from exporters.model import DropReason, RecordKind
from exporters.printable import json_text, printable
from exporters.spool.positions import read_state
from exporters.spool.reader import SpoolReader
from exporters.spool.records import ROW_TYPES, decode_instance, decode_push, decode_rows, scan
from exporters.spool.waiting import waiting_segments
from headroom.cli.options import DEFAULT_DATA, Data, Output, TableOrJson, one_line_errors, time_text
from headroom.errors import ArgumentError
from telemetry.ingest.progress import Counts

app = typer.Typer(help="The spool between the network processes and the store.", no_args_is_help=True)

_READ_BYTES = 16 << 20
_NO_SUCH_SEGMENT = "no segment of the spool is called {!r}: see `headroom spool status`"


@app.command()
def status(data: Data = DEFAULT_DATA, output: TableOrJson = Output.TABLE) -> None:
    """Show segments with records that are not stored yet, and totals so far. `serve` may be running."""
    with one_line_errors(data):
        state = read_state(data / "spool")
        segments = list(waiting_segments(data / "spool", state.positions))
    if output is Output.JSON:
        totals = state.totals
        document = {
            "segments": [segment._asdict() for segment in segments],
            "begun": state.intent,
            "finished_records": totals.records,
            "finished_bytes": totals.bytes,
            "corrupt": totals.corrupt,
            "torn": totals.torn,
        }
        typer.echo(json_text(document))
        return
    if segments:
        from exporters.text_table import Layout
        from headroom.cli.output.tables import print_table  # slow to import

        rows = [(*map(str, segment[:-1]), "yes" if segment.being_written else "no") for segment in segments]
        headings = ("segment", "writer", "records", "bytes", "position", "being written")
        print_table(headings, rows, Layout(numbers=("records", "bytes", "position")))
    records, nbytes = sum(segment.records for segment in segments), sum(segment.bytes for segment in segments)
    typer.echo(f"{records} records in {nbytes} bytes are waiting; {state.totals.records} records are finished")


@app.command()
def inspect(
    segment: Annotated[str, typer.Argument(help="As `status` prints it.")],
    data: Data = DEFAULT_DATA,
    records: Annotated[int, typer.Option(help="Number of records to show.", min=1)] = 20,
) -> None:
    """Show the next records of a segment: kind, size, time and sender; payloads are not decoded."""
    with one_line_errors(data):
        state = read_state(data / "spool")
        waiting = {segment.segment: segment for segment in waiting_segments(data / "spool", state.positions)}
        if segment not in waiting:
            raise ArgumentError(_NO_SUCH_SEGMENT.format(segment))
        mark = int(segment.split("-")[2], 16)
        with (data / "spool" / segment).open("rb") as file:
            file.seek(waiting[segment].position)
            for kind, body in scan(file.read(_READ_BYTES), mark, records).records:
                typer.echo(f"{kind.name.lower()} {len(body)} bytes {_facts(kind, body)}")


@app.command()
def skip(
    segment: Annotated[str, typer.Argument(help="As `status` prints it.")],
    data: Data = DEFAULT_DATA,
    records: Annotated[int, typer.Option(help="Number of records to drop.", min=1)] = 1,
) -> None:
    """Drop the next records of a segment permanently and count them as dropped. Not while `headroom serve` runs."""
    with one_line_errors(data), closing(SpoolReader(data / "spool")) as reader:
        reader.release()
        batch = reader.batch_of(segment, records, _READ_BYTES)
        if batch is None:
            raise ArgumentError(_NO_SUCH_SEGMENT.format(segment))
        counts = Counts.of_note(reader.note)
        counts.dropped[DropReason.SKIPPED] += len(batch.records)
        reader.commit(batch, {**reader.note, **counts.as_note()})
    typer.echo(f"{len(batch.records)} records in {batch.end - batch.start} bytes dropped")


def _facts(kind: RecordKind, body: bytes) -> str:
    try:
        if kind in ROW_TYPES:
            return f"{len(decode_rows(kind, body))} rows"
        if kind is RecordKind.INSTANCE:
            seen = decode_instance(body)
            return f"{time_text(seen.seen_at_ms)} {printable(seen.connection.principal)} {printable(seen.client_id)}"
        push = decode_push(body)
        who = f"{printable(push.connection.principal)} {printable(push.client_id)}"
        received = time_text(push.received_at_ms)
    except (ValueError, TypeError) as exc:
        return f"cannot be read: {printable(str(exc))}"
    return f"{received} {who} payload={len(push.payload)} compression={push.compression_type}"
