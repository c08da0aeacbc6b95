"""What-if: recorded usage replayed under other quotas, and the outcome per client. Sans-I/O.

usage.py         recorded usage as columns, and when it may come to a limit
replay.py        the replay: clients whose bytes wait, quotas that mute them
group.py         the replay of clients that share a limit, without the time in which they cannot come to it
outcomes.py      which clients a change affects, which of them are replayed, and the outcome for each, also in words

In: rows of quota_usage and quota_limits, and alterations. Imports quota_metrics.config, .measure and .windows.
"""
