"""`headroom job ...`: the Spark jobs, in this process."""

from __future__ import annotations

from importlib import import_module

import typer

from spark_jobs import cli

app = typer.Typer(help="Spark jobs over the collected data.", no_args_is_help=True)


def _loader(name: str) -> cli.Loader:
    def load() -> cli.Job:
        job: cli.Job = import_module(f"spark_jobs.jobs.{name.replace('-', '_')}").run
        return job

    return load


for _name in cli.JOBS:
    app.command(_name)(cli.command(_name, _loader(_name)))


@app.callback()
def _jobs() -> None:
    """Spark jobs over the collected data."""
