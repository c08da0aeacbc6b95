"""`python -m headroom` is `headroom`."""

from headroom.cli import main

main()
