"""Spool -> store: batches of records, Arrow tables, rollups, quarantine of refused pushes, counts.

`ingester.py` owns the loop; all else is sans-I/O except the quarantine's files. Imports telemetry.decode and exporters.
"""
