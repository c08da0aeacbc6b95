"""What-if: recorded usage replayed under other quotas, and the outcome per client. Sans-I/O.

replay.py        the replay: clients whose bytes wait, buckets that mute them
outcomes.py      which clients a change affects, which of them are replayed, and the outcome for each
outcome_text.py  the outcome as a verdict and a sentence

In: rows of quota_usage and quota_limits, and an alteration. Imports quota_metrics.config, .measure and .windows.
"""
