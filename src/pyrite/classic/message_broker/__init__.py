"""The message broker: the same client and protocol, on port 1370."""
