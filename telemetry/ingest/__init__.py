"""Moves records from the spool to the store: batches, Arrow tables, rollups, quarantine, counts.

`ingester.py` reads a batch, decodes it, builds its tables (arrow_tables.py), writes them one by one
and commits. progress.py is for its supervisor. Sans-I/O except for the store and the files of the quarantine. Imports
telemetry.decode and exporters.
"""
