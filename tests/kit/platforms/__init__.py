"""Servers, profiles and proxies of other people, for tests and the matrix of platforms."""
