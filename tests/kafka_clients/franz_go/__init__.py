"""A franz-go client for `headroom verify-client`; needs `go`."""
