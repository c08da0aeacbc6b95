"""The group `headroom quotas`: its app with the commands of all files beside this one."""

from __future__ import annotations

from headroom.cli.quotas.commands import app
from headroom.cli.quotas.stale import stale

app.command()(stale)
