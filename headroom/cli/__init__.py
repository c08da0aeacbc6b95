"""The command line: main.py, and a file or folder per command group. output/ prints tables, JSON and text.

Commands parse flags and print; the work is done by the packages they call. Heavy imports are inside commands.
"""
