"""TLS as a transport of asyncio, on a connection moved by hand."""

import asyncio
from typing import cast

import pytest

from syncline.server.listener import SESSION_ID_INFO
from syncline.server.smp.tls import RECORD_BYTES, TlsConnection, TlsFacts
from syncline.server.smp.tls_transport import TlsTransport, http_face

FACTS = TlsFacts(b"s" * 32, b"http/1.1", b"localhost", ())


class Connection:
    """Takes one record after the other, or keeps it until it is told that there is room."""

    def __init__(self) -> None:
        self.handler: TlsTransport
        self.is_open = True
        self.has_room = True
        self.written: list[bytes] = []
        self.is_reading = True
        self.ends: list[str] = []

    @property
    def is_writable(self) -> bool:
        return self.has_room and self.is_open

    def write(self, data: bytes) -> None:
        assert self.is_writable
        assert isinstance(data, bytes)
        self.written.append(data)
        if self.fills_up:
            self.has_room = False

    fills_up = False

    def make_room(self) -> None:
        self.has_room = True
        self.handler.drained()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self.ends.append("close")
        self._end()

    def abort(self) -> None:
        self.ends.append("abort")
        self._end()

    def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().call_soon(self.handler.ended)


class Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.told: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.told.append(data)

    def pause_writing(self) -> None:
        self.told.append("full")

    def resume_writing(self) -> None:
        self.told.append("room")

    def connection_lost(self, exc: Exception | None) -> None:
        assert exc is None
        self.told.append("lost")


class Rig:
    def __init__(self) -> None:
        self.connection = Connection()
        self.protocol = Protocol()
        face = http_face(lambda: self.protocol, asyncio.get_running_loop())
        self.transport = face(cast(TlsConnection, self.connection), FACTS, "192.0.2.1")
        self.connection.handler = self.transport


@pytest.fixture
async def rig() -> Rig:
    made = Rig()
    await asyncio.sleep(0)
    return made


async def test_a_protocol_hears_of_its_transport_before_anything_else() -> None:
    rig = Rig()
    assert rig.protocol.told == [], "the connection was not handed over yet"
    rig.transport.received(b"early")
    await asyncio.sleep(0)
    assert rig.protocol.told == ["made", b"early"]
    other = Rig()
    other.connection.abort()
    await asyncio.sleep(0)
    assert other.protocol.told == ["made", "lost"]


async def test_it_says_where_it_comes_from_and_that_it_is_tls(rig: Rig) -> None:
    info = rig.transport.get_extra_info
    assert info("peername") == ("192.0.2.1", 0)
    assert info("sslcontext")
    assert info(SESSION_ID_INFO) == b"s" * 32
    assert info("socket") is None


async def test_another_protocol_may_take_over(rig: Rig) -> None:
    other = Protocol()
    rig.transport.set_protocol(other)
    assert rig.transport.get_protocol() is other
    rig.transport.received(b"for the other")
    rig.connection.close()
    await asyncio.sleep(0)
    assert (rig.protocol.told, other.told) == (["made"], [b"for the other", "lost"])


async def test_reading_is_paused_where_it_happens(rig: Rig) -> None:
    assert rig.transport.is_reading()
    rig.transport.pause_reading()
    assert not rig.connection.is_reading
    rig.transport.resume_reading()
    assert rig.connection.is_reading


async def test_what_is_written_goes_out_in_records(rig: Rig) -> None:
    data = bytes(range(256)) * 200
    rig.transport.write(data)
    rig.transport.write(b"")
    rig.transport.write(bytearray(b"more"))
    assert [len(each) for each in rig.connection.written] == [
        *(RECORD_BYTES, RECORD_BYTES, RECORD_BYTES),
        *(len(data) - 3 * RECORD_BYTES, 4),
    ]
    assert b"".join(rig.connection.written) == data + b"more"
    assert rig.transport.get_write_buffer_size() == 0


async def test_a_buffer_may_be_used_again(rig: Rig) -> None:
    rig.connection.fills_up = True
    rig.transport.write(b"first")
    buffer = bytearray(b"second")
    rig.transport.write(buffer)
    buffer[:] = b"xxxxxx"
    rig.connection.make_room()
    assert rig.connection.written == [b"first", b"second"]


async def test_what_waits_is_known(rig: Rig) -> None:
    rig.connection.fills_up = True
    rig.transport.write(bytes(40_000))
    assert rig.transport.get_write_buffer_size() == 40_000
    rig.connection.make_room()
    assert rig.transport.get_write_buffer_size() == 40_000 - RECORD_BYTES
    rig.connection.make_room()
    rig.connection.make_room()
    assert rig.transport.get_write_buffer_size() == 0


async def test_a_protocol_is_told_when_too_much_waits_and_when_there_is_room(rig: Rig) -> None:
    rig.connection.fills_up = True
    rig.transport.set_write_buffer_limits(high=40_000, low=10_000)
    rig.transport.write(bytes(40_000))
    assert rig.protocol.told == ["made"]
    rig.transport.write(bytes(1))
    rig.transport.write(bytes(1))
    assert rig.protocol.told == ["made", "full"]
    rig.connection.make_room()
    assert rig.protocol.told == ["made", "full"]
    rig.connection.fills_up = False
    rig.connection.make_room()
    assert rig.protocol.told == ["made", "full", "room"]


async def test_limits_have_defaults(rig: Rig) -> None:
    rig.connection.fills_up = True
    rig.transport.set_write_buffer_limits()
    rig.transport.write(bytes(64 * 1024))
    assert rig.protocol.told == ["made"]
    rig.transport.write(bytes(1))
    assert rig.protocol.told == ["made", "full"]
    rig.transport.set_write_buffer_limits(high=80)
    assert rig.transport.get_write_buffer_size() == 64 * 1024 + 1


async def test_closing_sends_what_waits_first(rig: Rig) -> None:
    rig.connection.fills_up = True
    rig.transport.write(b"one")
    rig.transport.write(b"two")
    rig.transport.close()
    assert rig.transport.is_closing()
    assert rig.connection.ends == []
    rig.transport.write(b"too late")
    rig.transport.received(b"too late, too")
    rig.connection.make_room()
    assert rig.connection.ends == ["close"]
    rig.transport.close()
    await asyncio.sleep(0)
    assert rig.connection.written == [b"one", b"two"]
    assert rig.protocol.told == ["made", "lost"]
    assert rig.connection.ends == ["close"]


@pytest.mark.parametrize("end", ["close", "write_eof"])
async def test_closing_with_nothing_left_to_say_ends_it(rig: Rig, end: str) -> None:
    assert rig.transport.can_write_eof()
    getattr(rig.transport, end)()
    assert rig.connection.ends == ["close"]
    await asyncio.sleep(0)
    assert rig.protocol.told == ["made", "lost"]
    assert not rig.transport.is_reading()


async def test_aborting_loses_what_waits(rig: Rig) -> None:
    rig.connection.fills_up = True
    rig.transport.write(bytes(100_000))
    rig.transport.abort()
    assert rig.connection.ends == ["abort"]
    await asyncio.sleep(0)
    assert rig.protocol.told == ["made", "full", "lost"]
    assert rig.transport.get_write_buffer_size() == 0


async def test_the_other_side_may_end_it(rig: Rig) -> None:
    rig.connection.fills_up = True
    rig.transport.write(bytes(100_000))
    rig.connection.close()
    await asyncio.sleep(0)
    assert rig.transport.is_closing()
    rig.transport.write(b"into the void")
    assert rig.protocol.told[-1] == "lost"
    assert len(rig.connection.written) == 1


async def test_it_is_secured_before_it_is_made(rig: Rig) -> None:
    with pytest.raises(AssertionError):
        rig.transport.secured(FACTS)
