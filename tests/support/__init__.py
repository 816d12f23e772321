"""What several tests need: a real broker to talk to, and a broker without sockets to drive by hand."""
