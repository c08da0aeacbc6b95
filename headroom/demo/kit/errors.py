"""Errors that end the demo, each with a one-line message."""

from __future__ import annotations


class DemoError(Exception):
    """A part of the demo failed; the message is one line."""


class PrerequisiteError(DemoError):
    """A prerequisite is missing: Java, the Kafka jars."""
