"""A RESP client that delivers and acknowledges, in a process of its own.

All requests and all expected replies are built before the clock starts, so that the client costs
next to nothing while it runs, and every reply byte is compared. One trip carries the
acknowledgements of what the last trip delivered (XDEL) and the reads of the next messages (XRANGE …
COUNT 1): a message is acknowledged only after it was received.

    python -m bench.log.resp_client '{"port": …, "server_pid": …, …}'
"""

import json
import random
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.log.resp import bulk, count_stored, make_queues, request
from bench.support.processes import BenchError, cpu_seconds
from bench.support.redis_benchmark import key

_RECEIVE_BYTES = 1 << 20
_SILENCE_SECONDS_MAX = 60


Numbered = tuple[bytes, bytes]  # key, id


@dataclass(slots=True)
class Trip:
    request: bytes
    reply: bytes


class Connection:
    """Trips in order: one under way, compared to the byte."""

    def __init__(self, port: int, trips: Sequence[Trip]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._trips = trips
        self._next = 0
        self._wanted = b""
        self._received = bytearray()

    def send_next(self) -> bool:
        """False when all trips were made."""
        if self._next == len(self._trips):
            return False
        trip = self._trips[self._next]
        self._next += 1
        self._wanted = trip.reply
        self.socket.sendall(trip.request)
        return True

    def receive(self) -> bool:
        """True when the whole reply is here."""
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise BenchError("the server closed the connection")
        if self._received or len(data) != len(self._wanted):
            self._received += data
            if len(self._received) < len(self._wanted) and self._received[:1] != b"-":
                return False
            data = bytes(self._received)
            self._received.clear()
        if data != self._wanted:
            raise BenchError(f"unexpected reply {data[:120]!r}, expected {self._wanted[:120]!r}")
        return True


def run_trips(port: int, trips_of: Sequence[Sequence[Trip]]) -> float:
    """All trips of all connections at once; return the seconds."""
    connections = [Connection(port, trips) for trips in trips_of]
    poll = select.epoll()
    by_descriptor = {connection.socket.fileno(): connection for connection in connections}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    began = time.perf_counter()
    open_count = sum(connection.send_next() for connection in connections)
    while open_count:
        ready = poll.poll(_SILENCE_SECONDS_MAX)
        if not ready:
            raise BenchError(f"no reply for {_SILENCE_SECONDS_MAX} s")
        for descriptor, _ in ready:
            connection = by_descriptor[descriptor]
            if connection.receive() and not connection.send_next():
                open_count -= 1
    seconds = time.perf_counter() - began
    poll.close()
    for connection in connections:
        connection.socket.close()
    return seconds


class Script:
    """What fills the queues, and what delivers and acknowledges all of it again, cycle by cycle.

    Each connection has its own queues, so their order does not depend on the other connections.
    """

    def __init__(self, connections: int, pipelined: int, queue_count: int, body: bytes) -> None:
        queues_each = queue_count // connections
        if queues_each < pipelined:
            raise ValueError(f"{queue_count} queues are too few for {connections} connections")
        self._queues = [
            range(connection * queues_each, (connection + 1) * queues_each)
            for connection in range(connections)
        ]
        self._pipelined = pipelined
        self._body = body
        self._chance = random.Random(3)
        # The first message of each queue was the one that made it.
        self._last_seq = dict.fromkeys(range(queue_count), 1)

    def cycle(self, trip_count: int) -> tuple[list[list[Trip]], list[list[Trip]]]:
        """The trips of each connection: first those that fill, then those that take."""
        numbered = [
            [
                [(key(queue), self._next_id(queue)) for queue in self._chosen(own)]
                for _ in range(trip_count)
            ]
            for own in self._queues
        ]
        return [_appends(trips, self._body) for trips in numbered], [
            _deliveries(trips, self._body) for trips in numbered
        ]

    def _chosen(self, own: range) -> list[int]:
        return self._chance.sample(own, self._pipelined)

    def _next_id(self, queue: int) -> bytes:
        self._last_seq[queue] += 1
        return b"%d-0" % self._last_seq[queue]


def _appends(numbered: Sequence[Sequence[Numbered]], body: bytes) -> list[Trip]:
    return [
        Trip(
            b"".join(request(b"XADD", queue, id_, b"f", body) for queue, id_ in trip),
            b"".join(bulk(id_) for _, id_ in trip),
        )
        for trip in numbered
    ]


def _deliveries(numbered: Sequence[Sequence[Numbered]], body: bytes) -> list[Trip]:
    trips: list[Trip] = []
    tail = b"*2\r\n" + bulk(b"f") + bulk(body)
    for before, after in zip([(), *numbered], [*numbered, ()], strict=True):
        acknowledge = b"".join(request(b"XDEL", queue, id_) for queue, id_ in before)
        read = b"".join(request(b"XRANGE", queue, b"-", b"+", b"COUNT", b"1") for queue, _ in after)
        delivered = b"".join(b"*1\r\n*2\r\n" + bulk(id_) + tail for _, id_ in after)
        trips.append(Trip(acknowledge + read, b":1\r\n" * len(before) + delivered))
    return trips


def main(task: dict[str, Any]) -> dict[str, float]:
    port, pid, queue_count = int(task["port"]), int(task["server_pid"]), int(task["queue_count"])
    body = random.Random(2).randbytes(int(task["body_bytes"]))
    script = Script(task["connections"], task["pipelined"], queue_count, body)
    make_queues(port, queue_count)
    each = task["connections"] * task["pipelined"] * task["trip_count"]
    fill_seconds = take_seconds = cpu = 0.0
    for _ in range(task["cycle_count"]):
        fill, take = script.cycle(task["trip_count"])
        fill_seconds += run_trips(port, fill)
        check_stored(port, queue_count, each)
        cpu_before = cpu_seconds(pid)
        take_seconds += run_trips(port, take)
        cpu += cpu_seconds(pid) - cpu_before
        check_stored(port, queue_count, 0)
    message_count = each * task["cycle_count"]
    return {
        "message_count": message_count,
        "append_per_second": message_count / fill_seconds,
        "per_second": message_count / take_seconds,
        "cpu_us": cpu / message_count * 1e6,
    }


def check_stored(port: int, queue_count: int, expected: int) -> None:
    stored = count_stored(port, queue_count)
    if stored != expected:
        raise BenchError(f"{expected} messages should be stored, the server says {stored}")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
