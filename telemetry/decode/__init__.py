"""Converts a client's payload to columns: bounded decompression, budgets, OTLP, histograms, templates.

Sans-I/O. Input is untrusted: every size is checked before work is done (bounds.py).
Imports telemetry.wire.errors and exporters.model.
"""
