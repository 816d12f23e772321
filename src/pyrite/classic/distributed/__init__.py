"""The distributed broker: publishers that create topics and send, subscribers that pull (port 5555)."""
