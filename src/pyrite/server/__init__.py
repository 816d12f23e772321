"""What touches the network and the process: listeners, configuration, start-up and shutdown."""
