"""The child processes of `headroom serve`, their supervisors in the parent, and the messages between them.

A name that ends with _process is the entry point of a child (`python -m`), with its parent's side, which for network
processes is network_processes.py; assembly.py builds the parts that every network process has, security.py their TLS
and SASL.

address_quotas.py         the brokers' quotas on addresses, decided in one place for all network processes of this
                          gateway
child_supervisor.py       the parent's side of every child process: starts it, exchanges messages, restarts it when it
                          dies, stops it
forward_process.py        the forwarding process: follows its mirror of the spool and sends pushes to an OTLP endpoint
level_schedule.py         decides when which levels are computed, and which of several services computes them
levels_process.py         the levels process: computes the levels of clients into the store, beside the processes that
                          forward frames
messages.py               the messages between `headroom serve` and its child processes: one JSON object a line
network_process.py        a further network process: accepts clients at its parent's ports and writes pushes to its
                          own segments
network_processes.py      the parent's side of the further network processes: starts them, exchanges messages,
                          restarts and stops them
parent_pipes.py           the child's side of the pipes to its parent: messages by standard input and output
storage_process.py        the storage worker's process: follows the spool and writes to ClickHouse
"""
