"""The access list: users with passwords, tokens, and rules on topics. broker/access.py is its interface."""
