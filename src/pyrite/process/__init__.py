"""What every process of Pyrite needs: logging, TLS sockets, listening addresses, a fair queue."""
