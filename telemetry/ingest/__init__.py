"""Moves records from the spool to the store: decoded batches, Arrow tables, rollups, quarantine, counts.

`ingester.py` reads a batch, decodes it (decoded_batch.py), writes it table by table (bisecting_writer.py) and commits.
Points are sent in the order of their sorting key (point_order.py).
crash_range.py narrows a range at which the worker died; its supervisor watches progress.py. Sans-I/O except for the
store and the files of the quarantine. Imports telemetry.decode and exporters.
"""
