"""The MQTT protocol, driven without sockets: the codec, connections, and what clients see."""
