"""The short way to records says the same as pyOpenSSL's own."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from OpenSSL import SSL

from syncline.server.smp import openssl
from syncline.server.smp.tls import server_context
from tests.unit.server.smp.transport_rig import IDENTITY

Outcome = bytes | int | type[BaseException]


class Pair:
    """A connection of each kind to the same sort of peer; both peers are pyOpenSSL's own."""

    def __init__(self, kind: type[SSL.Connection], stack: ExitStack) -> None:
        here, there = (stack.enter_context(each) for each in socket.socketpair())
        for each in (here, there):
            each.setblocking(False)
        self.connection = kind(server_context(IDENTITY), here)
        self.connection.set_accept_state()
        self.peer_socket = there
        self.peer = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), there)
        self.peer.set_connect_state()
        while not all([_shakes(self.peer), _shakes(self.connection)]):
            pass


def _shakes(side: SSL.Connection) -> bool:
    try:
        side.do_handshake()
    except SSL.WantReadError:
        return False
    return True


def outcome(work: Callable[[], bytes | int]) -> Outcome:
    try:
        return work()
    except SSL.Error as error:
        return type(error)


@pytest.fixture
def pairs() -> Iterator[tuple[Pair, Pair]]:
    with ExitStack() as stack:
        yield Pair(openssl.DirectConnection, stack), Pair(SSL.Connection, stack)


def test_the_short_way_is_taken_here() -> None:
    assert openssl.Connection is openssl.DirectConnection


def test_records_come_and_go(pairs: tuple[Pair, Pair]) -> None:
    for pair in pairs:
        pair.peer.send(b"a" * 16_384)
        pair.peer.send(b"b")
        assert pair.connection.recv(16_384) == b"a" * 16_384
        assert pair.connection.recv(16_384) == b"b"
        assert pair.connection.send(b"c" * 16_384) == 16_384
        assert pair.peer.recv(16_384) == b"c" * 16_384


def test_nothing_has_come(pairs: tuple[Pair, Pair]) -> None:
    for pair in pairs:
        assert outcome(partial(pair.connection.recv, 10)) is SSL.WantReadError


def test_there_is_no_room(pairs: tuple[Pair, Pair]) -> None:
    for pair in pairs:
        while (found := outcome(partial(pair.connection.send, bytes(16_384)))) == 16_384:
            pass
        assert found is SSL.WantWriteError


def test_the_peer_says_goodbye(pairs: tuple[Pair, Pair]) -> None:
    for pair in pairs:
        pair.peer.shutdown()
        assert outcome(partial(pair.connection.recv, 10)) is SSL.ZeroReturnError


def test_the_peer_goes_without_a_word(pairs: tuple[Pair, Pair]) -> None:
    for pair in pairs:
        pair.peer_socket.close()
        found = outcome(partial(pair.connection.recv, 10))
        assert isinstance(found, type)
        assert issubclass(found, SSL.Error)
        assert not issubclass(found, SSL.WantReadError | SSL.ZeroReturnError)


def test_a_broken_record_ends_its_connection_and_no_other(pairs: tuple[Pair, Pair]) -> None:
    broken, other = pairs
    broken.peer_socket.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert outcome(lambda: broken.connection.recv(10)) is SSL.Error
    # The error is not left for whoever asks next.
    assert outcome(lambda: other.connection.recv(10)) is SSL.WantReadError
    other.peer.send(b"word")
    assert other.connection.recv(10) == b"word"
