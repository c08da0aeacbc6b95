"""The composition root. Imports all packages, imported by none.

cli/        the command line
server/     `headroom serve`: builds, runs and supervises all parts
web/        pages and JSON API over the store
config/     settings
capacity/   the model of `headroom plan`
demo/       `headroom demo`, and starters of real brokers and clients that tests use, too
"""

from headroom.interpreted import is_wanted, prefer_source

if is_wanted():
    prefer_source()
