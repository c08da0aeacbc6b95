"""Errors that prevent Headroom from starting, or a command from running; messages are one line."""


class ServeError(Exception):
    """Headroom cannot start; the message is one line."""


class ArgumentError(Exception):
    """A flag is invalid; the message is one line."""
