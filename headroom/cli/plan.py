"""`headroom plan`: what a deployment needs, computed from measured figures."""

import json
from typing import Annotated

import typer

from exporters.text_table import Layout
from headroom.capacity.model import Workload, load_figures, plan
from headroom.cli.options import Output, TableOrJson
from headroom.cli.output.tables import print_table
from quota_metrics.amounts import bytes_text

app = typer.Typer()


@app.command("plan")
def plan_command(
    clients: Annotated[int, typer.Option(min=1, help="Client instances that push.")],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two pushes of an instance.")] = 60.0,
    points: Annotated[float, typer.Option(min=1, help="Data points a push: Java about 110, librdkafka 12.")] = 110.0,
    push_bytes: Annotated[float, typer.Option(min=1, help="Bytes a push, compressed.")] = 2_500.0,
    rate: Annotated[float, typer.Option(min=0, help="Kafka bytes a second through the gateways, in and out.")] = 0.0,
    request_bytes: Annotated[float, typer.Option(min=1, help="Bytes a Kafka request with its response.")] = 16_384.0,
    brokers: Annotated[int, typer.Option(min=1, help="Brokers that each client is connected to.")] = 3,
    names: Annotated[int, typer.Option(min=0, help="Active pairs of user and client id; 0: clients / 10.")] = 0,
    retention_days: Annotated[float, typer.Option(min=0.1, help="Days that points are kept.")] = 14.0,
    replicas: Annotated[int, typer.Option(min=1, help="ClickHouse nodes that hold each row.")] = 2,
    outage_hours: Annotated[float, typer.Option(min=0, help="Hours without ClickHouse that spools hold.")] = 4.0,
    output: TableOrJson = Output.TABLE,
) -> None:
    """Gateways, cores, memory, disk and network for N clients, from figures measured per core."""
    work = Workload(
        clients=clients,
        interval_s=interval,
        points=points,
        push_bytes=push_bytes,
        rate_bytes_s=rate,
        request_bytes=request_bytes,
        brokers=brokers,
        names=names,
        retention_days=retention_days,
        replicas=replicas,
        outage_h=outage_hours,
    )
    figures = load_figures()
    try:
        lines = plan(work, figures)
    except (OverflowError, ValueError) as exc:  # infinity, for example
        raise typer.BadParameter("a number is too large to plan with") from exc
    if output is Output.JSON:
        typer.echo(json.dumps({"plan": [line._asdict() for line in lines], "figures": figures.model_dump()}, indent=2))
        return
    cells = []
    for line in lines:
        amount, unit = f"{line.value:,.1f}" if line.unit == "cores" else f"{line.value:,.0f}", line.unit
        if unit.startswith("bytes"):
            amount, prefixed = bytes_text(line.value).split()
            unit = prefixed + unit.removeprefix("bytes")
        cells.append((line.name, amount, unit, line.because))
    print_table(("what", "needed", "unit", "because"), cells, Layout(numbers=("needed",), below=("because",)))
    typer.echo(f"Measured {figures.measured} on {figures.machine}, {figures.build}: {figures.source}.")
    typer.echo("Limits of the model: docs/scale.md.")
