"""Java semantics that KIP-714 depends on: hash codes and hash orders, java.util.regex patterns, character classes.

Sans-I/O. Imports telemetry.wire.errors only.
"""
