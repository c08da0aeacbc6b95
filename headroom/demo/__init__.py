"""`headroom demo`: a real broker, sixteen real clients with quotas, and evidence that the report is correct.

run.py is the entry point, script.py the clients' rates and quotas, scenario.py starts and measures, evidence.py
compares with the broker's own numbers, levels.py reads the level that each interface shows. kit/ starts real parts and
is shared with the tests.
"""
