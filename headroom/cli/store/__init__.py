"""`headroom store`: whether a ClickHouse fits, before the first row.

commands.py  `headroom store check`: whether a server, a user's profile, a proxy and replicas fit, before the first
             row
"""
