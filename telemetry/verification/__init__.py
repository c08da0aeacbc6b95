"""Checks a client against KIP-714: a sink that plays a script of answers and watches what the client does.

rules         the names of the rules, and what was found about each
script        what the client is offered and answered, stage by stage
payloads      what the bytes of a push must be
one_topic     what producers are answered
client_check  the state machine over observed requests; knows no socket and no clock
listener      the sockets
"""
