"""The composition root. Imports all packages, imported by none.

cli/        the command line
server/     `headroom serve`: builds, runs and supervises all parts
web/        pages and JSON API over the store
config/     settings
capacity/   the model of `headroom plan`
demo/       `headroom demo`; tests start brokers, JVMs and clients with its parts

clock.py                 the two clocks, which are passed as parameters: wall time for records, monotonic time for
                         decisions
daemon_thread.py         runs a blocking call beside the event loop, in a thread that nothing waits for
errors.py                errors that prevent Headroom from starting, or a command from running; messages are one line
interpreted.py           HEADROOM_PURE=1 runs the Python source of every module, even where a wheel contains it
                         compiled
logs.py                  configures structured logs on standard error: readable lines on a terminal, JSON elsewhere
owners.py                the owners of users, client ids and topics: the file of the setting `owners`
platforms.py             what Headroom does not run on, in one line, before anything is loaded
subscription_preview.py  which clients in the store a subscription would match, and the points per second they would
                         send
version.py               `headroom --version`: version, build, Python and ClickHouse engine
"""

from headroom.interpreted import prefer_source_if_wanted

prefer_source_if_wanted()
