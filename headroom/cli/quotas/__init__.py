"""`headroom quotas`: commands on the quotas of a cluster or of a file.

    commands        describe, resolve, alter
    arguments       flags -> entities, filters and changes
    what_if         `what-if`: simulates other quotas on recorded usage (quota_metrics.simulation)
    recorded_usage  reads the recorded usage from the store

Prints through headroom.cli.output.
"""
