"""The line protocol over UDP: one frame a datagram, clients known by the address that they send from.

What UDP lacks is made up for here. Messages to a subscriber are numbered, and sent again, ever more rarely,
until their Ack comes. A Publish that was sent twice, as its answer was lost, is done once, if it has an id.
And as the address that a datagram claims to be from may be someone else's, an address must first show that it
receives what is sent to it: by answering `Ping TOKEN` with `Pong TOKEN`. Until then it is sent no more bytes
than came from it, and of what it asked for only the last datagram is remembered, to be handled when it has
answered.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pyrite.broker.access import NOT_AUTHORIZED, Credentials
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription
from pyrite.protocols.line.connection import LineConnection, message, singles
from pyrite.protocols.line.frames import MAX_DATAGRAM, Line, error, frames_in, line, parse
from pyrite.protocols.line.options import LineOptions
from pyrite.protocols.states import CLOSED

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.session import Session

Address = tuple[str, int]
Send = Callable[[bytes, Address], object]

WINDOW = 32
"""Messages under way to one client that it has not acknowledged."""
FIRST_RETRY = 0.2
LAST_RETRY = 5.0
"""Seconds after which a message is sent again, the first time and later on."""
LATE = 2.0
"""Seconds by which a sign of life may come too late: until then nothing is sent, and nothing is forgotten."""
MAX_STRANGERS = 1_024
"""Addresses that have not shown that they receive what is sent to them, of which there is a record."""
MAX_STRANGERS_PER_HOST = 64
"""The same of one host: it takes the place of its own, and not of others."""
MAX_REMEMBERED = 2_048
"""Bytes of a stranger's datagram that may be remembered."""
MAX_ANSWERS = 256
"""Commands of one client, the last that had an id, whose answers are remembered."""
MAX_WAITING = 1024 * 1024
"""Bytes of messages that may wait for one client beyond those under way."""


class Datagrams:
    """All clients of one UDP socket."""

    def __init__(self, broker: Broker, options: LineOptions, send: Send) -> None:
        self.broker = broker
        self.options = options
        self.send = send
        self._clients: dict[Address, DatagramConnection] = {}
        self._strangers: OrderedDict[Address, None] = OrderedDict()
        self._strangers_of: dict[str, OrderedDict[Address, None]] = {}
        self._per_address: dict[str, int] = {}
        """Clients of each host; without strangers, whose address may be someone else's."""

    def __len__(self) -> int:
        return len(self._clients)

    def received(self, data: bytes, address: Address) -> None:
        """Take a datagram. Never raises."""
        client = self._clients.get(address)
        if client is None:
            of_host = self._strangers_of.get(address[0], ())
            if len(of_host) >= MAX_STRANGERS_PER_HOST:
                self._clients[next(iter(of_host))].forgotten()
            elif len(self._strangers) >= MAX_STRANGERS:
                self._clients[next(iter(self._strangers))].forgotten()
            client = self._clients[address] = DatagramConnection(self, address)
            self._strangers[address] = None
            self._strangers_of.setdefault(address[0], OrderedDict())[address] = None
        client.take(data)

    def full_for(self, address: Address) -> str:
        """Take a stranger that has shown who it is for a client; or say why there is no room for it."""
        limits = self.broker.limits
        here = self._per_address.get(address[0], 0)
        if here >= limits.max_connections_per_address:
            return "there are too many connections from its address"
        if len(self._clients) - len(self._strangers) >= limits.max_connections:
            return "there are too many connections"
        self._per_address[address[0]] = here + 1
        self._no_stranger(address)
        return ""

    def _no_stranger(self, address: Address) -> None:
        """Take an address out of those that have not shown that they receive what is sent to them."""
        del self._strangers[address]
        of_host = self._strangers_of[address[0]]
        del of_host[address]
        if not of_host:
            del self._strangers_of[address[0]]

    def connections(self) -> list[DatagramConnection]:
        """Return all clients."""
        return list(self._clients.values())

    def forget(self, address: Address) -> None:
        """Drop the record of a client."""
        client = self._clients.pop(address, None)
        if client is None:
            return
        client.tell_disconnected(None)
        if address in self._strangers:
            self._no_stranger(address)
            return
        self._per_address[address[0]] -= 1
        if not self._per_address[address[0]]:
            del self._per_address[address[0]]

    def ended(self, reason: int) -> None:
        """Tell all clients that the broker ends."""
        for client in list(self._clients.values()):
            client.ended(reason)


class _Transport:
    """Where the frames of one client go: a datagram each."""

    __slots__ = ("_address", "_datagrams", "budget")

    def __init__(self, datagrams: Datagrams, address: Address) -> None:
        self._datagrams = datagrams
        self._address = address
        self.budget: int | None = 0
        """How many bytes may be sent to an address that may be someone else's; None if it is not."""

    def write(self, data: bytes | bytearray) -> None:
        """Send frames, as far as they may be sent."""
        for frame in frames_in(bytes(data)):
            if self.budget is not None:
                if len(frame) > self.budget:
                    continue
                self.budget -= len(frame)
            self._datagrams.send(frame, self._address)

    def get_write_buffer_size(self) -> int:
        """Return how much waits: a datagram is sent or lost."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: datagrams come when they come."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Forget the client."""
        self._datagrams.forget(self._address)

    def abort(self) -> None:
        """Forget the client."""
        self._datagrams.forget(self._address)


class _Sent(NamedTuple):
    frame: bytes
    due: float
    delay: float


class DatagramConnection(LineConnection):
    """One client over UDP."""

    __slots__ = (
        "_answers",
        "_datagrams",
        "_proved",
        "_queue",
        "_queued",
        "_remembered",
        "_token",
        "_unacknowledged",
    )

    transport: _Transport

    def __init__(self, datagrams: Datagrams, address: Address) -> None:
        self._datagrams = datagrams
        transport = _Transport(datagrams, address)
        where = f"{address[0]}:{address[1]}"
        super().__init__(datagrams.broker, datagrams.options, transport, address[0], where)
        self._proved = False
        self._token = secrets.token_urlsafe(4).encode()
        self._remembered: bytes | None = None
        """The last datagram of a stranger."""
        self._unacknowledged: dict[int, _Sent] = {}
        """Messages under way, by number."""
        self._queue: deque[bytes] = deque()
        """Messages that wait until fewer are under way."""
        self._queued = 0
        self._answers: OrderedDict[str, bytes | None] = OrderedDict()
        """Answers to the last commands that had an id; None for one that is not answered yet."""
        self._set_timer()

    def watched(self, event: str) -> None:
        """Do nothing: there are no connections over UDP."""

    # Datagrams in

    def take(self, data: bytes) -> None:
        """Take a datagram: one frame, with or without its last line's end."""
        was_alive, self.seen_at = self._alive, self.broker.now
        if not was_alive:
            self.due()  # which sends what waited
        if self.transport.budget is not None:
            self.transport.budget += len(data)
        asked = parse(data.partition(b"\n")[0])
        if not self._proved and self._proves(asked):
            self._come_in()
        elif not self._proved:
            self._challenge(asked, data)
        if not self._proved:
            return
        if self._remembered is not None:
            remembered, self._remembered = self._remembered, None
            self._handle_datagram(remembered)
        if asked.command != "Pong":
            self._handle_datagram(data)

    def _challenge(self, asked: Line, data: bytes) -> None:
        """Ask a stranger to show that it receives what is sent to its address.

        A Ping that is shorter than the challenge gets its Pong instead. A client that was forgotten sends a
        longer one, and learns by the challenge that its subscriptions are gone.
        """
        assert self.transport.budget is not None
        challenge = line("Ping", self._token)
        if asked.command == "Ping" and len(challenge) > self.transport.budget:
            self.transport.write(line("Pong", *asked.words[:1]))
            return
        if len(data) <= MAX_REMEMBERED:
            self._remembered = data
        self.transport.write(challenge)

    def _proves(self, asked: Line) -> bool:
        """Tell whether this is the answer that shows that the address is the sender's own."""
        return asked.command == "Pong" and asked.words[:1] == [self._token]

    def _come_in(self) -> None:
        """Become a client, if there is room for one more."""
        self.transport.budget = None
        full = self._datagrams.full_for((self.credentials.address, int(self.peer.rpartition(":")[2])))
        if full:
            self.tell_refused(0, full)
            self.write(error("full", full))
            self.close()
        else:
            self._proved = True

    def _handle_datagram(self, data: bytes) -> None:
        if self.received is not None and len(self.received) > MAX_DATAGRAM:
            self.broker.figures.messages_dropped += (
                1  # it waits for the disk, and this is as if lost on the way
            )
            return
        if self._known(data):
            return
        self.feed(data if data.endswith(b"\n") else data + b"\n")
        if self.received is not None and not self.interrupted:
            self.received = None
            self.write(error("bad-frame", "a datagram holds one whole frame: is its length right?"))

    def _known(self, data: bytes) -> bool:
        """Answer a command that came before from memory; tell whether it is one."""
        head = data.partition(b"\n")[0]
        at = head.rfind(b" id=")
        if at < 0 or not head[:7].lower().startswith(b"publish"):
            return False
        request = head[at + 4 :].split(b" ")[0].decode("utf-8", "replace")
        if request in self._answers:
            answer = self._answers[request]
            if answer is not None:
                self.write(answer)
            return True
        self._answers[request] = None
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return False

    def _answer(self, session: Session, answer: bytes, count: int = 1) -> None:
        at = answer.rfind(b" id=")
        if at >= 0:
            request = answer[at + 4 :].strip().decode("utf-8", "replace")
            if request in self._answers:
                self._answers[request] = answer
        super()._answer(session, answer, count)

    def _connected_already(self, client_id: str) -> None:
        """Answer once more: the first answer was lost, or not waited for."""
        if client_id != self.credentials.client_id:
            super()._connected_already(client_id)
        self.say(line("Ack", "Connect", client_id, "resumed"))

    @property
    def default_ttl(self) -> int:
        """For how long a session lasts if nothing is said: there is no connection for it to end with."""
        return int(self.options.udp_timeout) + 1

    @property
    def window(self) -> int:
        """How many messages may be under way."""
        return WINDOW

    @property
    def max_list(self) -> int:
        """How many bytes the answer to a List may have: it is one datagram."""
        return MAX_DATAGRAM - len(line("List", MAX_DATAGRAM))

    # Messages out

    def can_take(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Tell whether messages fit into a datagram each."""
        if len(message(batch.part(0, 1), 2**63)) <= MAX_DATAGRAM:
            return True
        self._tell_too_long(batch)
        return False

    def _tell_too_long(self, batch: Batch) -> None:
        self.broker.figures.messages_dropped += batch.count
        size = batch.stride - batch.payload_at
        text = f"a message of {size} bytes on {batch.topic.decode()!r} does not fit into a datagram"
        self.write(error("too-long", text))

    def forward(self, batch: Batch, target: Subscription) -> None:
        """Send messages that no one else keeps for this client; they wait here for their Ack."""
        for part in batch.parts():
            if not self.can_take(part, target, 0):
                continue
            if target.latest:
                self.send_latest(part)
                continue
            for index in range(part.count):
                number = self.count(b"")
                frame = message(part.part(index, index + 1), number)
                if len(self._unacknowledged) < WINDOW and not self._queue:
                    self._transmit(number, frame)
                elif self._queued + len(frame) <= MAX_WAITING:
                    self._queue.append(number.to_bytes(8, "big") + frame)
                    self._queued += len(frame)
                else:
                    self.forget_number(number)
                    self.broker.figures.messages_dropped += 1

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        """Send messages under the session's numbers."""
        if not qos:
            self.forward(batch.part(start, stop), target)
            return True
        parts = [one for part in batch.part(start, stop).parts() for one in singles(part)]
        for number, part in enumerate(parts, first_id):
            frame = message(part, number)
            if len(frame) > MAX_DATAGRAM:
                self._tell_too_long(part)
                return False
            self._transmit(number, frame)
        return True

    def _transmit(self, number: int, frame: bytes) -> None:
        """Send a message, and again until it is acknowledged; while the client is late, once it is back."""
        alive = self._alive
        due = self.broker.now + FIRST_RETRY if alive else self.broker.now
        self._unacknowledged[number] = _Sent(frame, due, FIRST_RETRY)
        if alive:
            self.write(frame)
        self.count_sent(1, len(frame))
        self._set_timer()

    def emit_numbered(self, number: int, frame: bytes) -> None:
        """Send a message that was numbered by the connection itself."""
        self._transmit(number, frame)

    def acknowledged(self, number: int) -> None:
        """Note that a message has arrived, and send one that waited."""
        self._unacknowledged.pop(number, None)
        while self._queue and len(self._unacknowledged) < WINDOW:
            waiting = self._queue.popleft()
            self._queued -= len(waiting) - 8
            self._transmit(int.from_bytes(waiting[:8], "big"), waiting[8:])

    # Time and the end

    @property
    def _alive(self) -> bool:
        """Whether the last sign of life is recent enough."""
        return self.seen_at + self.options.udp_timeout > self.broker.now

    def _set_timer(self) -> None:
        due = self.seen_at + self.options.udp_timeout + LATE
        if self._unacknowledged and self._alive:
            due = min(due, min(sent.due for sent in self._unacknowledged.values()))
        self.broker.timers.set(self, due)

    def due(self) -> None:
        """Send again what was not acknowledged; forget a client that has been silent for too long."""
        broker = self.broker
        if self.state is CLOSED or self.seen_at + self.options.udp_timeout + LATE <= broker.now:
            self.forgotten()
            return
        if not self._alive:
            self._set_timer()
            return
        for number, sent in list(self._unacknowledged.items()):
            if sent.due <= broker.now:
                delay = min(2 * sent.delay, LAST_RETRY)
                self._unacknowledged[number] = _Sent(sent.frame, broker.now + delay, delay)
                self.write(sent.frame)
        self._set_timer()

    def forgotten(self) -> None:
        """End, without a word: no one listens."""
        self.why = self.why or "nothing came for too long"
        self.state = CLOSED
        self.forget_term()
        self.broker.timers.cancel(self)
        self.leave(send_will=True)
        self.transport.abort()

    def log_in_overdue(self) -> None:
        """Forget a client that has not logged in in time."""
        self.why = "no log-in came in time"
        self.forgotten()

    def fail(self, code: str, text: str) -> None:
        """Say what is wrong with a datagram; the next is another matter."""
        self.received = None
        if code == "not-authorized" and self.came_at is None:
            self.tell_refused(NOT_AUTHORIZED, text)
        if self.session is None:  # or the next would come in under the name that this one gave
            self.credentials = Credentials("", None, None, self.credentials.address)
        self.write(error(code, text))

    def close(self) -> None:
        """End, and tell it in what was written last."""
        if self.state is not CLOSED:
            self.state = CLOSED
            self.forget_term()
            self.broker.timers.cancel(self)
            self.flush()
            self.transport.close()
