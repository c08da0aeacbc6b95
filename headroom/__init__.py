"""The composition root: command line, configuration, supervision, demo. Imports all packages, imported by none."""
