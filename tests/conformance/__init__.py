"""The MQTT 5.0 and 3.1.1 specifications as tests, over real sockets, against a real broker."""
