"""The one request/response mechanism between the broker and its child processes (HTTP, Flight).

    problem.py     the exception that both sides raise
    messages.py    typed messages: requests, answers, notices, settings
    channel.py     frames on the socket
    client.py      the child's side: asks the broker
    server.py      the broker's side: hands requests to handlers
    api.py         the requests of the HTTP API, and from which path each comes
    flight.py      the requests of the Flight process

A new request is one structure in api.py or flight.py, and one handler in pyrite/server/.
"""
