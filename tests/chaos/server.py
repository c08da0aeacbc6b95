"""`python -m tests.chaos.server DIRECTORY PORT`: what a ClickHouse server is to Headroom, until it is killed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from exporters.clickhouse.sql_door import SqlDoor
from exporters.clickhouse.store import Store

if __name__ == "__main__":
    store = Store.embedded(Path(sys.argv[1]))
    store.migrate()  # the receiver's own database has to be there
    receiver = SqlDoor(store, "127.0.0.1", int(sys.argv[2]))
    print("ready", *receiver.start(), flush=True)
    signal.pause()
