"""The ClickHouse server that Headroom runs itself, as a child process with its own directory.

launcher.py       entry point of the child: arranges to die with the parent, then becomes the server
write_guard.c     preloaded into the chdb wheel's server, which ignores failed writes: ends it instead
configuration.py  the server's configuration: paths, ports, memory, threads, HTTP rules; writes it and the users as XML
access.py         its users: the writer, the readers, their grants and limits; the writer's password file
server.py         the process: finds the program (configured, installed, or inside the chdb wheel), reserves ports

In: a directory, addresses and limits. Out: addresses to connect to, and the writer's password.
"""
