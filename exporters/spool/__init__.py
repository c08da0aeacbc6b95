"""The durable queue between the network processes, which write, and the storage process, which reads.

writer.py appends records to segments; reader.py follows the segments of all writers (segment_reader.py: one of them)
and keeps its positions in positions.py; segment_format.py and records.py are the bytes of segments and of records
(sans-I/O). Imports exporters.model.
"""
