"""The jobs: each file is a command of `headroom job` and a script for spark-submit."""
