"""The ClickHouse server that Headroom runs itself: a child process over a directory of ours.

executable.py     which program: a configured or installed `clickhouse`, else the server inside the chdb wheel
launcher.py       the child's first page: dies with its parent, becomes the server
configuration.py  the server's configuration as a document: paths, ports, memory, threads, HTTP rules
access.py         its users as a document: the writer, the reader, their grants and limits; the writer's password file
document.py      documents as ClickHouse reads them
server.py         the process: start, wait until it answers, stop

In: a directory, addresses and limits. Out: addresses to connect to, and the writer's password. Imports only the
parent package's connection and errors.
"""
