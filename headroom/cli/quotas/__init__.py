"""`headroom quotas`: commands on the quotas of a cluster or of a file. `app` has the commands of all files.

    commands.py     describe, resolve, alter; flags -> entities, filters and changes
    what_if.py      `what-if`: simulates other quotas on recorded usage (quota_metrics.what_if)
    as_code.py      `plan`, `apply`, `export`, `drift`: the quotas of a file
    cluster_state.py  reads quotas and subscriptions of a cluster, and applies a plan
    stale.py        `stale`: replication throttles that are of no use

Prints through headroom.cli.output.
"""

from headroom.cli.quotas.commands import app
from headroom.cli.quotas.stale import stale

app.command()(stale)
