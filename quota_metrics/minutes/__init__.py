"""Minutes: rows of usage -> rows of usage_1m -> windows, and the levels that `headroom serve` computes of them.

sql/               the statements; `usage_1m` makes the rows of that table
usage_minutes.py   runs it: for the service each minute, for a job what is missing
records.py         names the statements; makes values of their results, without the garbage collector
windows.py         rows of usage_1m -> windows, with numpy; after rows.py, columns.py and exact_rules.py
resolved_limits.py limits of clients whose rows do not say them
surroundings.py    what clients reported of themselves, and their instances
teams.py           the team of each client
memories.py        the memory of all clients, restored from the stored minutes
live.py            all of it together: computes 60 seconds and writes their levels
"""
