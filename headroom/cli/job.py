"""`headroom job ...`: the Spark jobs, in this process."""

from __future__ import annotations

import typer

from spark_jobs import cli

app = typer.Typer(help="Spark jobs over what was collected.", no_args_is_help=True)


def _quota_headroom() -> cli.Job:
    from spark_jobs.jobs import quota_headroom

    return quota_headroom.run


app.command("quota-headroom")(cli.quota_headroom(_quota_headroom))


@app.callback()
def _jobs() -> None:
    """Spark jobs over what was collected."""
