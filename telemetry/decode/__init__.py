"""A client's payload -> columns: bounded decompression, budgets, OTLP, histograms, templates of known structures.

Sans-I/O. Input is hostile: every size is checked before work is done (budgets.py, client_budgets.py).
Imports telemetry.wire.errors and exporters.model.
"""
