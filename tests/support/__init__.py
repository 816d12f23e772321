"""Shared by tests of several folders: a real broker, and a broker without sockets that a test drives."""
