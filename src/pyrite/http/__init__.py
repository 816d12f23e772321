"""The HTTP API and the dashboard, in a process of its own beside the broker.

Requests take CPU time; here they take none of the broker's. The process reads the log's files itself, and
asks the broker (pyrite/ipc) what only the broker can tell. The broker starts it as `python -m pyrite.http`.

    __main__.py    the process: its sockets, and how it ends
    server.py      uvicorn's server, with listeners of our own
    protocol.py    bounds on connections: how many, how large a head, how long a request
    app.py         routes, and what every answer carries
    exchange.py    one request: its caller, parameters, body, and what it holds in memory
    validation.py  parameters and bodies as typed structures, and errors for people
    handlers.py    the endpoints that do more than pass a request on to the broker
    messages.py    messages of the log: read, or pulled
    reading.py     messages out of the log's files
    metrics.py     metrics in Prometheus's text format
    openapi.py     the description of the API, generated from pyrite/ipc/api
    static/        the dashboard
"""
