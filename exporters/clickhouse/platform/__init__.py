"""What a statement needs of the server that somebody else set up: of its profiles, and of proxies before it.

settings.py  the table of settings that our statements assume; what of it a connection has to set
proxies.py   the environment's proxy, and none for what Headroom runs itself
opening.py   opens a connection and sets them; refuses a profile that fixes others, and a proxy that drops settings
"""
