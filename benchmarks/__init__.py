"""Pyrite measured against mosquitto, nats-server and amqtt: `python -m benchmarks --help`."""
