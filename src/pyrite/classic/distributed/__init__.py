"""The distributed broker: publishers create topics and send, subscribers pull (port 5555)."""
