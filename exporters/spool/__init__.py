"""The durable queue from the network processes (writers) to the storage process (reader).

writer.py appends records to segments; reader.py reads the segments of all writers and stores its positions with
positions.py; mirror.py lets a second reader read the same segments (forwarding by OTLP); records.py encodes segments
and records (sans-I/O). Imports exporters.model.

lanes.py    which writer of the spool a push belongs to, so that a flood waits behind itself
waiting.py  what waits in a spool, found in its files alone: independent of the reader, which may hang
"""
