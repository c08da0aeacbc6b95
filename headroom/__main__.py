"""`python -m headroom` runs the command line."""

from headroom.cli.main import main

main()
