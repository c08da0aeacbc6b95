"""Errors that end a run of the demo, each one line for the user."""

from __future__ import annotations


class DemoError(Exception):
    """Something that the demo needs did not work. The message is one clear line."""


class PrerequisiteError(DemoError):
    """Something that must be there before the start is missing: Java, the Kafka jars."""
