"""The settings with their defaults (settings.py and a file per large section), and their sources (sources.py).

Imports no other package of this repository except for constants.
"""
