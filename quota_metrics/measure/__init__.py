"""Usage and utilisation: the meter of exchanges, quota callbacks, the broker's quota manager. Sans-I/O."""
