"""Every setting with its default (settings.py, a file per large section) and where settings come from (sources.py)."""
