"""Protocols: bytes to broker calls and back, one folder a protocol, none of them touching a socket."""
