"""Checks a client against KIP-714: a sink that plays a script of answers and watches what the client does.

findings.py   the rules that a client must keep, by name, and what was found about each
payloads.py   what the bytes of a push must be
client_check.py  what the client is offered and answered, stage by stage, and the state machine over its requests
listener.py   the sockets, and answers to producers
"""
