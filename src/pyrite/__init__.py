"""Pyrite: a message broker whose messages are born ready for Spark."""

__version__ = "0.1.0"
