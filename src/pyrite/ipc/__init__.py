"""The one request/response mechanism between the broker and its child processes (HTTP, Flight).

    problem.py     the exception of both sides
    messages.py    typed messages: requests, answers, notices, settings
    channel.py     frames on the socket
    client.py      the child's side: sends requests
    server.py      the broker's side: passes requests to handlers
    api/           the requests of the HTTP API, each with its path
    flight.py      the requests of the Flight process

A new request is one structure in api/ or flight.py, and one handler in pyrite/server/.
"""
