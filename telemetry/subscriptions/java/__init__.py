"""Java semantics that KIP-714 and principals depend on: hash codes and hash orders, java.util.regex patterns, character
classes, names of certificates' subjects.

Sans-I/O. Imports telemetry.wire.errors only.
"""
