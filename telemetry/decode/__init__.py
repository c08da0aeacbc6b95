"""Converts a client's payload to columns: bounded decompression, budgets, OTLP, histograms, templates.

Sans-I/O. Input is untrusted: every size is checked before work is done (bounds.py).
Imports telemetry.wire.errors and exporters.model.

bounds.py     what a payload may cost: bounded decompression, and the structure of its protobuf
decoder.py    decodes a Push from the spool to a DecodedPush: decompresses it and uses a template where one matches
lenient.py    reads protobuf whose texts need not be UTF-8
otlp.py       decodes an OTLP MetricsData payload to columns of points, series and histograms
series.py     identity of a time series, which are known, and how many a client may add
templates.py  templates of known payload structures, which make parsing unnecessary
"""
