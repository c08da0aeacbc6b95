"""The command line: a file or folder for each command group; output/ prints tables, JSON and KIP-546's text."""
