"""Usage and utilisation: the meter of what passes, quota callbacks, the broker's quota manager. Sans-I/O."""
