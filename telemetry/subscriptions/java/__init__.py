"""Java semantics that KIP-714 and principals depend on: hash orders, java.util.regex patterns, names of subjects.

Sans-I/O. Imports telemetry.wire.errors only.

hash.py        Java's hash codes and iteration orders, as far as subscription ids depend on them
regex.py       a java.util.regex.Pattern for whole-text matches, run by RE2 in linear time
x500_name.py   the subject of a certificate as Java prints it: X500Principal.getName(), the form of RFC 2253
"""
