"""A client's payload -> columns: decompression within bounds, OTLP, histograms, templates of known structures.

Sans-I/O. Input is hostile: every size is checked before work is done. Imports telemetry.wire.errors and
exporters.model.
"""
