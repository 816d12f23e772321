"""Shared by all processes: log output, accept loop, TLS, listening sockets, a fair queue."""
