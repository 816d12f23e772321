"""Messages between the broker and its child processes."""
