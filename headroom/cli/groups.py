"""Command groups that are imported when they are used: `headroom --help` imports none of them."""

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
    # The module adds its command to the app of quotas/commands.py.
    "quotas": Group("headroom.cli.quotas.what_if", "Client quotas: what is set, what applies to whom, and change."),
    "subscriptions": Group(
        "headroom.cli.subscriptions.commands",
        "Telemetry subscriptions: which metrics clients are asked for, how often.",
    ),
    "quarantine": Group("headroom.cli.quarantine", "Pushes that could not be stored: looked at, and sent again."),
    "spool": Group("headroom.cli.spool", "What waits in the spool between the network processes and the store."),
    "plan": Group("headroom.cli.plan", "Gateways, cores, memory, disk and network for N clients."),
    "gateway": Group("headroom.cli.gateway", "Whether a gateway could stand in front of a cluster."),
    "config": Group("headroom.cli.config", "Settings of headroom serve: checked, shown, explained."),
    "job": Group("headroom.cli.job", "Spark jobs over what was collected."),
}


class LazyGroups(TyperGroup):
    """The top level: commands that are there, and groups by name."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Commands first, as they are declared."""
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
        """As click writes them, without importing a group for its line."""
        own = {name: super(LazyGroups, self).get_command(ctx, name) for name in super().list_commands(ctx)}
        lines = [(name, command.get_short_help_str(limit=90)) for name, command in own.items() if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl([*lines, *((name, group.help) for name, group in GROUPS.items())])
