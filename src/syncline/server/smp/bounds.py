"""The bounds of connections that carry blocks, and what is counted about them."""

from dataclasses import dataclass

from syncline.values.limits import KIB, MIB


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Each bounds what peers can make the router keep, alone or together."""

    connection_count_max: int = 16_384
    connections_per_address_max: int = 16_384
    # Connections that have not said a whole hello. One more, and the oldest of them is cut off: who
    # opens connections and says nothing does not keep others out.
    half_open_count_max: int = 1_024
    # From the first byte of TLS to the end of the hello.
    hello_seconds_max: float = 60.0
    # Answers that a session has not taken: above the first it is not read from, below the second it
    # is again; above the last it is cut off. What it had asked for before must fit into that: each
    # of `SmpOptions.unanswered_count_max` commands, and of one more block, may bring 16 KiB.
    waiting_bytes_high: int = 256 * KIB
    waiting_bytes_low: int = 64 * KIB
    waiting_bytes_max: int = 32 * MIB
    # Of all sessions together. Above it those are cut off that have taken least.
    all_waiting_bytes_max: int = 512 * MIB
    # A peer that takes nothing at all for so long is cut off.
    slow_seconds_max: float = 60.0
    # How long a connection is waited for that should end.
    close_seconds_max: float = 5.0
    # After so much silence the system asks whether the peer is still there.
    keep_alive_seconds: int = 120


@dataclass(slots=True)
class TransportStats:
    """Counters since the start, and what waits now."""

    # Answers, not padded yet, that connections have not taken.
    waiting_bytes: int = 0

    accepted_count: int = 0
    # Turned away: too many, in all or from one address.
    refused_count: int = 0
    # Cut off half open, by time or to make room.
    half_open_cut_count: int = 0
    tls_failed_count: int = 0
    hello_failed_count: int = 0
    service_refused_count: int = 0
    session_count: int = 0
    # Cut off because they did not take what they asked for.
    slow_count: int = 0
    damaged_count: int = 0
    received_block_count: int = 0
    sent_block_count: int = 0
