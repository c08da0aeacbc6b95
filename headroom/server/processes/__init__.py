"""The child processes of `headroom serve`, their supervisors in the parent, and what they say to each other.

*_process.py is the main of a child (`python -m`), *_supervisor.py its parent's side; assembly.py builds the parts that
every network process has.
"""
