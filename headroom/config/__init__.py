"""Every setting with its default (settings.py) and where settings come from (sources.py)."""
