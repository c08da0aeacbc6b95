"""Every broker release that people run, behind `headroom serve`, with old and new clients: `make matrix`."""
