"""The log over Arrow Flight, in a process of its own beside the broker.

Bulk reads take CPU time and memory, so they are handled outside the broker's process. The Flight process
reads the log's files itself, and asks the broker (pyrite/ipc) to check rights and to publish staged rows. The
broker starts it as `python -m pyrite.flight`.

Method          Effect
ListFlights     returns the streams: schema, first offset, and the offset after the last message
GetFlightInfo   splits a Query (JSON) into the requested number of parts, and returns a ticket for each
DoGet           returns the record batches of a ticket, each with the offset after its last message
DoPut           stages a part of a sink: {"sink": NAME, "part": NAME}
DoAction        bounds, offset, advance, commit, abort: JSON in, JSON out
"""
