"""Moves records from the spool to the store: batches, Arrow tables, rollups, quarantine, counts.

`ingester.py` reads a batch, decodes it, builds its tables (arrow_tables.py), writes them one by one and commits. Its
supervisor reads progress.py. Sans-I/O except for the store and the files of the quarantine. Imports telemetry.decode
and exporters.

quarantine.py     pushes that the store does not accept, unchanged, in a bounded directory
recent_series.py  reads from the store which series a restarted worker need not describe again
rollups.py        which hours have new points, and when the rollup of each is computed
"""
