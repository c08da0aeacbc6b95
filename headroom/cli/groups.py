"""Lazily imported command groups: `headroom --help` imports none of them."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup


class Group(NamedTuple):
    """A module that has a Typer `app`, and its line in `headroom --help`."""

    module: str
    help: str


GROUPS = {
    # The module and the one that it imports add their commands to the app of quotas/commands.py.
    "quotas": Group("headroom.cli.quotas.as_code", "Client quotas: show, resolve and change them, simulate changes."),
    "subscriptions": Group(
        "headroom.cli.subscriptions.commands",
        "Telemetry subscriptions: which metrics clients are asked for, how often.",
    ),
    "quarantine": Group("headroom.cli.quarantine", "Pushes that could not be stored: list, show, replay."),
    "spool": Group("headroom.cli.spool", "The spool between the network processes and the store."),
    "plan": Group("headroom.cli.plan", "Gateways, cores, memory, disk and network for N clients."),
    "gateway": Group("headroom.cli.gateway", "Check a cluster for a gateway; share of traffic that passes it."),
    "cluster": Group(
        "headroom.cli.cluster_facts", "The cluster: versions, quota windows, callback class, limits per address."
    ),
    "config": Group("headroom.cli.config", "Settings of headroom serve: check, show, explain."),
    "job": Group("spark_jobs.cli", "Spark jobs over the collected data."),
}


class LazyGroups(TyperGroup):
    """The top-level group: declared commands, and groups imported by name."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Commands first, in order of declaration."""
        return [*super().list_commands(ctx), *GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Imports the group."""
        if (group := GROUPS.get(cmd_name)) is None:
            return super().get_command(ctx, cmd_name)
        app: typer.Typer = importlib.import_module(group.module).app
        app.rich_markup_mode = None  # rich takes longer to import than the rest of the help
        app._add_completion = False  # the top level has it
        command = typer.main.get_command(app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Formats the list like click, without importing groups for their help lines."""
        own = {name: super(LazyGroups, self).get_command(ctx, name) for name in super().list_commands(ctx)}
        lines = [(name, command.get_short_help_str(limit=90)) for name, command in own.items() if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl([*lines, *((name, group.help) for name, group in GROUPS.items())])
