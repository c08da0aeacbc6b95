"""The child processes of `headroom serve`, their supervisors in the parent, and the messages between them.

*_process.py is the entry point of a child (`python -m`), *_supervisor.py the parent's side; assembly.py builds the
parts that every network process has, security.py their TLS and SASL.
"""
