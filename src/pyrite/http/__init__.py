"""The HTTP API and the dashboard, in a child process of the broker.

Requests take CPU time, so they are handled outside the broker's process. The HTTP process reads the log's
files itself, and asks the broker (pyrite/ipc) for everything else. The broker starts it as
`python -m pyrite.http`.

    __main__.py    the process: start and end
    server.py      uvicorn's server, with our listeners
    protocol.py    limits on connections: number, size of headers, time
    app.py         routes, and security headers
    exchange.py    one request: caller, parameters, body, memory
    validation.py  parameters and bodies as typed structures, and their errors
    handlers.py    endpoints that do more than forward a request to the broker
    messages.py    endpoints that read or pull messages
    reading.py     reads messages from the log's files
    metrics.py     metrics in Prometheus's text format
    openapi.py     the description of the API, generated from pyrite/ipc/api
    static/        the dashboard
"""
