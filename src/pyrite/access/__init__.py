"""Who may come in, and do what: users with passwords, and rules on topics. See broker/access.py."""
