"""`python -m headroom` is `headroom`."""

from headroom.cli.main import main

main()
