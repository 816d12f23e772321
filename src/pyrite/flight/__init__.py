"""The log over Arrow Flight, in a process of its own beside the broker.

Bulk reads take processor time and memory; here they take nothing from the event loop. The process reads the
log's files as anyone may, and asks the broker, over a socket that it was born with, what only the broker can
tell: who may do what, and to publish what was staged. `python -m pyrite.flight` is how the broker starts it.

What Flight calls   what it does
ListFlights         the streams: schema, first offset, and the offset after the last
GetFlightInfo       a Query (JSON) and how many parts it is to be read in: a ticket for each
DoGet               a ticket, which is a Query: record batches; with each, the offset after its last message
DoPut               stages a part of a sink: {"sink": NAME, "part": NAME}
DoAction            bounds, offset, advance, commit, abort: JSON in, JSON out
"""
