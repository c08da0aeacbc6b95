"""Prints results on standard output: tables, JSON, KIP-546's text."""
