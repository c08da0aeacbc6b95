"""Statements need certain settings on a server that somebody else set up, and a way through the proxies before it.

settings.py  the settings that our statements assume, and those that a connection has to set
proxies.py   the environment's proxy, and none for what Headroom runs itself
opening.py   opens a connection and sets them; refuses a profile that fixes others, and a proxy that drops settings
"""
