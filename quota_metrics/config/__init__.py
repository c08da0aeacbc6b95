"""Quota configuration: entities, the eight levels of precedence, validation, JSON files, history. Sans-I/O.

Imports only `exporters`.
"""
