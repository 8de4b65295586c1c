"""One WebSocket, moved by hand: one write a turn, limits in both directions, one end."""

import pytest

from syncline.server.frames import close_frame, frame, ping_frame, pong_frame
from syncline.server.websocket import PORTION_COUNT
from tests.unit.server.socket_rig import SocketRig, masked, masked_close


def test_messages_come_in_whole_and_with_their_kind() -> None:
    rig = SocketRig()
    rig.receive(masked(b"\xff\x00") + masked("grün".encode(), 0x81))
    assert rig.handler.messages == [(b"\xff\x00", False), ("grün".encode(), True)]


def test_what_is_sent_in_one_turn_is_one_write() -> None:
    rig = SocketRig()
    shared = frame(b"all", is_text=False)
    rig.socket.send(b"one", is_text=True)
    rig.socket.send_framed(shared)
    rig.socket.send(b"two", is_text=False)
    assert rig.transport.writes == []
    assert rig.socket.waiting_bytes == 3 * 5
    rig.loop.pass_time()
    assert rig.transport.writes == [b"\x81\x03one" + shared + b"\x82\x03two"]
    assert rig.socket.waiting_bytes == 0
    rig.socket.send_framed(shared)
    rig.loop.pass_time()
    assert rig.transport.writes[1:] == [shared]


def test_an_offer_without_company_is_written_at_once_and_never_overtakes() -> None:
    rig = SocketRig()
    one, two, three = (frame(each, is_text=False) for each in (b"one", b"two", b"three"))
    assert rig.socket.offer_framed(one, at_once=True)
    assert rig.transport.writes == [one]
    rig.socket.send_framed(two)
    assert rig.socket.offer_framed(three, at_once=True)
    assert rig.transport.writes == [one]
    rig.loop.pass_time()
    assert rig.transport.writes == [one, two + three]


def test_an_offer_at_once_is_refused_by_who_does_not_read() -> None:
    rig = SocketRig(room=0, waiting_bytes_max=2_000)
    assert rig.socket.offer_framed(b"a" * 900, at_once=True)
    assert rig.socket.offer_framed(b"b" * 900, at_once=True)
    assert not rig.socket.offer_framed(b"c", at_once=True)
    assert rig.socket.waiting_bytes == 1_800
    rig.transport.take(1_800)
    assert rig.socket.offer_framed(b"d", at_once=True)
    rig.socket.close(1000)
    assert not rig.socket.offer_framed(b"e", at_once=True)


def test_a_ping_is_answered_with_what_it_brought() -> None:
    rig = SocketRig()
    rig.receive(masked(b"are you there?", 0x89))
    rig.loop.pass_time()
    assert rig.sent == pong_frame(b"are you there?")
    assert rig.handler.messages == []


# Ending.


def test_a_goodbye_of_the_other_side_is_answered() -> None:
    rig = SocketRig()
    rig.receive(masked(b"last") + masked_close(1000, b"done") + masked(b"too late"))
    rig.loop.pass_time()
    assert rig.sent == close_frame(1000)
    assert rig.payloads == [b"last"]
    assert rig.handler.ends == [(1000, "done")]
    assert rig.transport.is_over
    assert not rig.transport.was_aborted
    assert rig.lost == [rig.socket]


def test_a_goodbye_without_a_code_is_answered_without_one() -> None:
    rig = SocketRig()
    rig.receive(masked(b"", 0x88))
    rig.loop.pass_time()
    assert (rig.sent, rig.handler.ends) == (b"\x88\x00", [(1005, "")])


def test_our_goodbye_goes_out_behind_what_was_sent() -> None:
    rig = SocketRig()
    rig.socket.send(b"last", is_text=False)
    rig.socket.close(4409, "displaced: there is a newer one")
    rig.socket.send(b"too late", is_text=False)
    rig.socket.close(1000, "again")
    assert rig.handler.ends == [], "closed comes in a turn of its own"
    rig.loop.pass_time()
    assert rig.sent == b"\x82\x04last" + close_frame(4409, "displaced: there is a newer one")
    assert rig.transport.has_ended_writing
    assert rig.handler.ends == [(4409, "displaced: there is a newer one")]
    assert not rig.socket.is_writable
    # What is on its way from the other side is read, so that nothing resets, and dropped.
    rig.receive(masked(b"unseen") + masked_close(4409))
    assert rig.handler.messages == []


def test_who_does_not_end_after_our_goodbye_is_cut_off() -> None:
    rig = SocketRig(close_seconds_max=5)
    rig.socket.close(1001, "going_away: the router stops")
    rig.loop.pass_time(4.9)
    assert not rig.transport.is_over
    rig.loop.pass_time(0.2)
    assert rig.transport.was_aborted
    assert rig.handler.ends == [(1001, "going_away: the router stops")]
    assert rig.lost == [rig.socket]


def test_a_lost_connection_is_told_once() -> None:
    rig = SocketRig()
    rig.transport.abort()
    rig.socket.send(b"into the void", is_text=False)
    rig.socket.close(1000)
    rig.socket.abort()
    rig.loop.pass_time(60)
    assert rig.handler.ends == [(1006, "")]
    assert (rig.sent, rig.socket.waiting_bytes) == (b"", 0)


def test_after_an_abort_nothing_is_received() -> None:
    rig = SocketRig()
    rig.handler.on_message = lambda _data: rig.socket.abort()
    rig.receive(masked(b"one") + masked(b"two"))
    rig.loop.pass_time()
    assert rig.payloads == [b"one"]
    assert rig.handler.ends == [(1006, "")]


def test_a_violation_ends_the_connection_with_its_code() -> None:
    rig = SocketRig(message_bytes_max=100)
    rig.receive(masked(b"good") + masked(b"x" * 101))
    rig.loop.pass_time()
    assert rig.payloads == [b"good"]
    assert rig.handler.ends == [(1009, "limit: a message may have 100 bytes")]
    assert rig.sent == close_frame(1009, "limit: a message may have 100 bytes")


# Silence.


def test_a_silent_peer_is_pinged_once_and_then_given_up() -> None:
    rig = SocketRig(heartbeat_seconds=20)

    def beat_after(seconds: float) -> None:
        rig.loop.pass_time(seconds)
        rig.socket.beat(rig.loop.now)
        rig.loop.pass_time()

    beat_after(19)
    assert rig.sent == b""
    beat_after(2)
    assert rig.sent == ping_frame()
    beat_after(10)
    assert rig.sent == ping_frame()
    rig.receive(masked(b"", 0x8A))
    beat_after(21)
    assert rig.sent == ping_frame() + ping_frame()
    beat_after(20)
    assert rig.handler.ends == [(1008, "slow: nothing was heard for 41 s")]


def beat_for(rig: SocketRig, seconds: int) -> list[tuple[int, bytes]]:
    """Look whenever it is due; when what was written."""
    start, written = rig.loop.now, list[tuple[int, bytes]]()
    while rig.loop.now < start + seconds:
        before = len(rig.sent)
        wait_seconds = rig.socket.beat(rig.loop.now)
        rig.loop.pass_time()
        if rig.sent[before:]:
            written.append((round(rig.loop.now - start), rig.sent[before:]))
        assert wait_seconds > 0
        rig.loop.pass_time(wait_seconds)
    return written


def test_who_wants_to_hear_something_does_though_nothing_happens() -> None:
    rig = SocketRig(heartbeat_seconds=20)
    rig.socket.keep_warm(b"warm")
    ping = ping_frame()
    # One write where both are due; a ping is for the program behind, and that has time.
    expected = [(25, b"warm"), (50, b"warm"), (75, b"warm"), (100, b"warm"), (120, ping)]
    assert beat_for(rig, 121) == expected
    rig.receive(masked(b"", 0x8A))
    assert beat_for(rig, 100)[0] == (20, b"warm"), "what was written last counts"
    assert rig.handler.ends == []


def test_both_are_one_write_and_nobody_warm_is_kept_for_ever() -> None:
    rig = SocketRig(heartbeat_seconds=25)
    rig.socket.keep_warm(b"warm")
    written = beat_for(rig, 290)
    assert written[5] == (150, b"warm" + ping_frame())
    beat_for(rig, 60)
    assert rig.handler.ends == [(1008, "slow: nothing was heard for 300 s")]


def test_what_was_sent_keeps_warm_too_and_who_does_not_read_is_let_be() -> None:
    rig = SocketRig(heartbeat_seconds=20, waiting_bytes_max=2_000)
    rig.socket.keep_warm(b"warm")
    rig.loop.pass_time(20)
    rig.socket.send_framed(b"news")
    rig.loop.pass_time()
    assert beat_for(rig, 26) == [(25, b"warm")]
    rig.socket.keep_warm(b"")
    rig.receive(masked(b"", 0x8A))
    assert beat_for(rig, 21) == [(20, ping_frame())]
    stuck = SocketRig(room=0, heartbeat_seconds=20, waiting_bytes_max=2_000, slow_seconds_max=999)
    stuck.socket.keep_warm(b"warm")
    stuck.socket.send_framed(b"x" * 2_000)
    stuck.loop.pass_time(30)
    stuck.socket.beat(stuck.loop.now)
    assert stuck.socket.waiting_bytes == 2_000


def test_a_ping_that_finds_no_room_is_sent_when_there_is() -> None:
    rig = SocketRig(room=0, heartbeat_seconds=20, waiting_bytes_max=2_000, slow_seconds_max=999)
    rig.socket.send_framed(b"x" * 2_000)
    rig.loop.pass_time(20)
    rig.socket.beat(rig.loop.now)
    rig.loop.pass_time()
    assert rig.sent == b"x" * 2_000 + ping_frame()


def test_who_is_not_listened_to_is_not_silent() -> None:
    rig = SocketRig(heartbeat_seconds=20)
    rig.socket.pause_reading()
    for _ in range(10):
        rig.loop.pass_time(20)
        rig.socket.beat(rig.loop.now)
    assert (rig.sent, rig.handler.ends) == (b"", [])


# Readers that do not read.


def test_a_full_reader_is_told_apart_and_told_when_it_drains() -> None:
    rig = SocketRig(room=0, waiting_bytes_max=2_000)
    rig.socket.send(b"x" * 900, is_text=False)
    assert rig.socket.is_writable
    rig.socket.send(b"x" * 900, is_text=False)
    assert not rig.socket.is_writable
    rig.loop.pass_time()
    assert not rig.socket.is_writable
    assert rig.socket.waiting_bytes == 1_808
    rig.transport.take(800)
    assert (rig.socket.is_writable, rig.handler.drained_count) == (False, 0)
    rig.transport.take(600)
    assert (rig.socket.is_writable, rig.handler.drained_count) == (True, 1)
    rig.loop.pass_time(3_600)
    assert rig.handler.ends == []


def test_an_offer_is_taken_exactly_while_the_reader_is_writable() -> None:
    rig = SocketRig(room=0, waiting_bytes_max=2_000)
    assert rig.socket.offer_framed(b"a" * 900)
    assert rig.socket.offer_framed(b"b" * 900)
    assert (rig.socket.is_writable, rig.socket.offer_framed(b"c")) == (False, False)
    rig.loop.pass_time()
    assert (rig.socket.is_writable, rig.socket.offer_framed(b"d")) == (False, False)
    rig.transport.take(1_800)
    assert (rig.socket.is_writable, rig.socket.offer_framed(b"e")) == (True, True)
    rig.loop.pass_time()
    assert rig.socket.waiting_bytes == 1
    rig.socket.close(1000)
    assert not rig.socket.offer_framed(b"f")


def test_what_a_write_leaves_waiting_is_told() -> None:
    rig = SocketRig(room=1_000)
    rig.socket.send_framed(b"a" * 900)
    rig.loop.pass_time()
    assert rig.waiting == []
    rig.socket.offer_framed(b"b" * 300, at_once=True)
    rig.socket.send_framed(b"c" * 50)
    rig.loop.pass_time()
    assert rig.waiting == [200, 250]


def test_who_is_cut_off_while_it_says_goodbye_ends_once() -> None:
    rig = SocketRig(room=0)
    rig.on_waiting = lambda: rig.socket.abort()
    rig.socket.close(1001, "going_away: the router stops")
    rig.loop.pass_time(60)
    assert rig.handler.ends == [(1006, "")]
    assert (rig.transport.was_aborted, rig.lost) == (True, [rig.socket])


def test_drained_comes_also_if_all_of_it_was_taken_at_once() -> None:
    rig = SocketRig(waiting_bytes_max=2_000)
    rig.socket.send(b"x" * 2_000, is_text=False)
    assert not rig.socket.is_writable
    rig.loop.pass_time()
    assert (rig.socket.is_writable, rig.handler.drained_count) == (True, 1)


@pytest.mark.parametrize("asked", ["is_writable", "offer_framed"])
def test_drained_comes_also_if_the_reader_goes_on_before_the_write(asked: str) -> None:
    rig = SocketRig(room=0, waiting_bytes_max=2_000)
    rig.socket.send_framed(b"a" * 900)
    rig.loop.pass_time()
    rig.socket.send_framed(b"b" * 900)
    refused = rig.socket.is_writable if asked == "is_writable" else rig.socket.offer_framed(b"c")
    assert not refused
    # Neither what is held nor what is written next fills the transport, so it says nothing.
    rig.transport.take(900)
    rig.loop.pass_time()
    assert (rig.socket.is_writable, rig.handler.drained_count) == (True, 1)


def test_a_reader_that_takes_nothing_is_cut_off_as_slow() -> None:
    rig = SocketRig(room=0, waiting_bytes_max=2_000, slow_seconds_max=10, close_seconds_max=5)
    rig.socket.send(b"x" * 2_000, is_text=False)
    rig.loop.pass_time(9)
    assert rig.handler.ends == []
    rig.loop.pass_time(2)
    assert rig.handler.ends == [(1008, "slow: 2004 bytes were not read")]
    assert not rig.transport.is_over
    rig.loop.pass_time(5)
    assert rig.transport.was_aborted


def test_a_reader_that_takes_a_little_is_given_time() -> None:
    rig = SocketRig(room=0, waiting_bytes_max=2_000, slow_seconds_max=10)
    rig.socket.send(b"x" * 2_000, is_text=False)
    for _ in range(5):
        rig.loop.pass_time(9)
        rig.transport.take(10)
    assert rig.handler.ends == []
    rig.loop.pass_time(21)
    assert [code for code, _ in rig.handler.ends] == [1008]


def test_a_handler_that_writes_on_regardless_is_stopped() -> None:
    rig = SocketRig(room=0, waiting_bytes_max=2_000)
    most = 0
    for _ in range(100):
        rig.socket.send(b"x" * 98, is_text=False)
        most = max(most, rig.socket.waiting_bytes)
        rig.loop.turn()
    assert most <= 1_000 + 2_000 + 2 * 100
    assert [code for code, _ in rig.handler.ends] == [1008]


def test_a_handler_that_writes_on_within_one_turn_is_stopped_too() -> None:
    rig = SocketRig(waiting_bytes_max=2_000)
    for _ in range(100):
        rig.socket.send(b"x" * 98, is_text=False)
        assert rig.socket.waiting_bytes <= 1_000 + 2_000 + 2 * 100
    rig.loop.pass_time()
    assert [code for code, _ in rig.handler.ends] == [1008]


def test_pongs_do_not_pile_up_for_who_reads_none() -> None:
    rig = SocketRig(room=0, waiting_bytes_max=2_000, messages_per_second=10**6)
    for _ in range(1_000):
        rig.receive(masked(b"x" * 98, 0x89))
        rig.loop.turn()
    assert 1_000 < rig.socket.waiting_bytes <= 1_100
    assert rig.handler.ends == []


# Senders that send too much.


def test_a_handler_holds_back_what_has_been_read_already() -> None:
    rig = SocketRig()
    rig.handler.on_message = lambda _data: rig.socket.pause_reading()
    rig.receive(masked(b"one") + masked(b"two") + masked(b"three"))
    assert rig.payloads == [b"one"]
    assert not rig.transport.is_reading
    rig.loop.pass_time(60)
    assert rig.payloads == [b"one"]
    rig.socket.resume_reading()
    assert rig.payloads == [b"one"], "not from within the call"
    rig.loop.pass_time()
    assert rig.payloads == [b"one", b"two"]
    rig.handler.on_message = lambda _data: None
    rig.socket.resume_reading()
    rig.loop.pass_time()
    assert rig.payloads == [b"one", b"two", b"three"]
    assert rig.transport.is_reading


def test_pausing_again_before_the_turn_ends_stays_paused() -> None:
    rig = SocketRig()
    rig.socket.pause_reading()
    rig.socket.resume_reading()
    rig.socket.pause_reading()
    rig.loop.pass_time()
    assert not rig.transport.is_reading


def test_a_large_read_is_handed_over_in_portions() -> None:
    rig = SocketRig(messages_per_second=10**6)
    rig.receive(masked(b"m") * (2 * PORTION_COUNT + 1))
    for count in (PORTION_COUNT, 2 * PORTION_COUNT, 2 * PORTION_COUNT + 1):
        assert len(rig.payloads) == count
        rig.loop.turn()
    assert rig.transport.is_reading


@pytest.mark.parametrize("payload", [b"", b"x" * 1_000])
def test_who_sends_too_fast_is_slowed_down_and_loses_nothing(payload: bytes) -> None:
    rig = SocketRig(messages_per_second=100, bytes_per_second=100 * 1_008)
    expected = 0
    for _ in range(100):
        rig.receive(masked(payload) * 10)
        expected += 10
        if not rig.transport.is_reading:
            break
    assert 100 < expected <= 120
    assert rig.handler.ends == []
    rig.loop.pass_time(2)
    assert len(rig.payloads) == expected
    assert rig.transport.is_reading


def test_pings_and_empty_fragments_count_as_well() -> None:
    for flood in (masked(b"", 0x89) * 300, masked(b"", 0x02) + masked(b"", 0x00) * 299):
        rig = SocketRig(messages_per_second=100)
        rig.receive(flood)
        assert not rig.transport.is_reading
        rig.loop.pass_time(1.9)
        assert not rig.transport.is_reading
        rig.loop.pass_time(0.2)
        assert rig.transport.is_reading


def test_a_goodbye_is_said_to_who_is_held_back() -> None:
    rig = SocketRig()
    rig.socket.pause_reading()
    rig.socket.close(1001)
    assert rig.transport.is_reading, "the end of the other side could not be seen"


def test_a_violation_among_what_was_held_back_ends_it() -> None:
    rig = SocketRig()
    rig.handler.on_message = lambda _data: rig.socket.pause_reading()
    rig.receive(masked(b"one") + masked(b"two") + b"\x82\x01x")
    for _ in range(2):
        rig.socket.resume_reading()
        rig.loop.pass_time()
    assert rig.payloads == [b"one", b"two"]
    assert [code for code, _ in rig.handler.ends] == [1002]
    assert rig.transport.is_reading
