"""The broker itself: sessions, routing, time and limits, driven without sockets."""
