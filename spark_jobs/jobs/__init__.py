"""The jobs: each file is a command of `headroom job` and a script for spark-submit.

backtest.py           scores forecasts of the recorded history against simple methods and, where installed, a library
client_inventory.py   inventory of clients: instances, versions with known issues, silent clients, clients without
                      telemetry, their cost
fleet.py              the clients of a fleet: their names, the rules in force, and the buckets that new quotas would
                      give them
quota_headroom.py     finds clients that are throttled or near their quota, once or, with --stream, again and again
quota_suggest.py      first or better quotas from recorded usage: a default for the fleet, quotas of their own for
                      those who are beyond it, and findings on the rules in force
suggested_replay.py   replays recorded usage under suggested quotas: one question to the what-if engine for each
                      cluster, key and day
team_report.py        usage, throttling and cost of each team
throttle_forecast.py  forecasts when each bucket reaches its limit at each broker
usage_windows.py      reads usage as windows, from the minutes of usage_1m, which is brought up to date first; for the
                      jobs over weeks as the history of buckets
"""
