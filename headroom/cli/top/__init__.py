"""`headroom top`: prints once (live.py), or runs as a tool: what keys do (state.py), what is drawn (screen.py), the
terminal itself (terminal.py). tables.py makes its tables from the rows of the API: clients and quotas, payers, topics
of clients."""
