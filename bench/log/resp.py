"""RESP beside the clock: queues made before a round, and what is stored looked at after it."""

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import hiredis

from bench.support.processes import BenchError
from bench.support.redis_benchmark import key

_RECEIVE_BYTES = 1 << 20
_TOGETHER = 512
_TRIES_MAX = 200
_RETRY_SECONDS = 0.05


def request(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(value), value)


class Link:
    """One connection; asks many at once and returns the replies in order."""

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self._reader = hiredis.Reader()

    def ask(self, requests: Sequence[bytes]) -> list[Any]:
        self._socket.sendall(b"".join(requests))
        replies: list[Any] = []
        while len(replies) < len(requests):
            reply = self._reader.gets()
            if reply is not False:
                replies.append(reply)
                continue
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise BenchError("the server closed the connection")
            self._reader.feed(data)
        return replies


@contextlib.contextmanager
def connected(port: int) -> Iterator[Link]:
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        yield Link(link)


def make_queues(port: int, queue_count: int) -> None:
    """Each queue gets one message, acknowledged at once: from then on it exists and is empty."""
    with connected(port) as link:
        for start in range(0, queue_count, _TOGETHER):
            indexes = range(start, min(start + _TOGETHER, queue_count))
            _append_first(link, list(indexes))
            link.ask([request(b"XDEL", key(index), b"1-0") for index in indexes])


def _append_first(link: Link, indexes: list[int]) -> None:
    """A server that wants to be asked again later is."""
    replies: list[Any] = []
    for _ in range(_TRIES_MAX):
        replies = link.ask([request(b"XADD", key(i), b"1-0", b"f", b"-") for i in indexes])
        answered = zip(indexes, replies, strict=True)
        indexes = [index for index, reply in answered if isinstance(reply, hiredis.ReplyError)]
        if not indexes:
            return
        time.sleep(_RETRY_SECONDS)
    raise BenchError(f"{len(indexes)} queues could not be made: {replies[-1]}")


def count_stored(port: int, queue_count: int) -> int:
    """What the server says it holds, queue by queue."""
    total = 0
    with connected(port) as link:
        for start in range(0, queue_count, _TOGETHER):
            indexes = range(start, min(start + _TOGETHER, queue_count))
            total += sum(link.ask([request(b"XLEN", key(index)) for index in indexes]))
    return total


def check_stored_body(port: int, queue_count: int, body: bytes) -> None:
    """The first queue that holds anything must hold this body, whole."""
    with connected(port) as link:
        for index in range(queue_count):
            (found,) = link.ask([request(b"XRANGE", key(index), b"-", b"+", b"COUNT", b"1")])
            if not found:
                continue
            if found[0][1][1] != body:
                raise BenchError("a stored message is not the one that was sent")
            return
    raise BenchError("no queue holds a message")
