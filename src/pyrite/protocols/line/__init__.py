"""The line protocol: commands that a person can type, over TCP and UDP."""
