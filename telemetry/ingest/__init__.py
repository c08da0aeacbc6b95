"""Spool -> store: decoded batches, Arrow tables, isolation of failing rows, rollups, quarantine, counts.

`ingester.py` reads a batch, decodes it (decoded_batch.py), writes it table by table (table_writer.py) and commits.
suspect.py narrows a range at which the worker died; progress.py is what its supervisor watches. Sans-I/O except the
store and the files of the quarantine. Imports telemetry.decode and exporters.
"""
