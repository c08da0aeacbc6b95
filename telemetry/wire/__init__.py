"""Kafka's protocol as bytes and values: primitives, frame scanner, API table, errors, messages, address rewrites.

Sans-I/O. Knows neither rules nor spool; imports nothing of telemetry outside this package.
"""
