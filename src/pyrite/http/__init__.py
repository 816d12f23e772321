"""The HTTP API and the dashboard, in a process of its own beside the broker.

Requests take processor time; here they take nothing from the event loop. The process reads the log's files
as anyone may, and asks the broker, over a socket that it was born with, what only the broker can tell.
`python -m pyrite.http` is how the broker starts it.

    __main__.py    the process: its sockets, and how it ends
    protocol.py    bounds on connections: how many, how large a head, how long a request
    app.py         which handler is at which path, and what every answer carries
    requests.py    what handlers have in common: who asks, parameters, bodies, problems
    about.py, clients.py, topics.py, messages.py, publishing.py, metrics.py    handlers, by subject
    reading.py     messages out of the log's files
    openapi.py     the description of all this
    control.py     the socket to the broker
    static/        the dashboard
"""
