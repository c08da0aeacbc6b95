"""The composition root: command line, configuration, supervision, demo. Imports all packages, imported by none."""

from headroom.interpreted import is_wanted, prefer_source

if is_wanted():
    prefer_source()
