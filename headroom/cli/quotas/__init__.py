"""`headroom quotas`: arguments become entities, filters and changes; commands ask a cluster or a file of quotas.

    commands        describe, resolve, alter;  arguments  what their flags mean
    what_if         replays recorded usage under other quotas;  recorded_usage  reads it from the store

Prints through headroom.cli.output.
"""
