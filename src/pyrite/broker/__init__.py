"""The heart: topics, sessions, retained messages, routing. No sockets, no files, no clock of its own."""
