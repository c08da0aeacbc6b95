"""The command line, one file per command group; output/ prints tables, JSON and KIP-546's text."""
