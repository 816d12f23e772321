"""The MQTT protocol without sockets: codec, connections, and what clients observe."""
