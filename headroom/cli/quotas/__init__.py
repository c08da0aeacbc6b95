"""`headroom quotas`: commands on the quotas of a cluster or of a file.

    commands        describe, resolve, alter
    arguments       flags -> entities, filters and changes
    what_if         `what-if`: simulates other quotas on recorded usage (quota_metrics.what_if)
    as_code         `plan`, `apply`, `export`, `drift`: the quotas of a file
    sections        its subscriptions and SCRAM users
    stale           `stale`: replication throttles that are of no use

Prints through headroom.cli.output.
"""
