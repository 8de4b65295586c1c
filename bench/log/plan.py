"""How much is measured: all of it, a first look in a few minutes, or a proof that it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

KB = 1024
BODY_SIZES = (1 * KB, 16 * KB)
IN_FLIGHT = (1, 64, 1024)


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    round_count: int
    queue_count: int
    # Messages of one run, by (body bytes, in flight).
    append_counts: Mapping[tuple[int, int], int]
    take_count: int
    # Over the socket, by (body bytes, pipelined); 64 connections.
    socket_counts: Mapping[tuple[int, int], int]
    # Trips of each connection until the queues are emptied again, and how often that is done: a
    # few thousand messages wait at most, as where readers are there.
    deliver_trip_count: int
    deliver_cycle_count: int
    nats_counts: Mapping[int, int]
    http_count: int
    # Messages a second that nobody reads, and for how long.
    backlog_rate: int
    backlog_seconds: int
    # On the private device.
    device_image_bytes: int
    cost_unmeasured_count: int
    cost_count: int
    cost_peer_count: int
    # Restart.
    restart_round_count: int
    restart_queue_count: int
    restart_queue_count_few: int
    restart_message_count: int
    restart_body_bytes: int
    restart_tail_count: int
    # Creation.
    create_count: int
    create_journal_count: int


FULL = Plan(
    name="full",
    round_count=5,
    queue_count=10_000,
    append_counts={
        (1 * KB, 1): 2_000,
        (1 * KB, 64): 128_000,
        (1 * KB, 1024): 131_072,
        (16 * KB, 1): 1_500,
        (16 * KB, 64): 16_000,
        (16 * KB, 1024): 16_384,
    },
    take_count=32_000,
    socket_counts={
        (1 * KB, 1): 60_000,
        (1 * KB, 16): 200_000,
        (16 * KB, 1): 20_000,
        (16 * KB, 16): 30_000,
    },
    deliver_trip_count=12,
    deliver_cycle_count=10,
    nats_counts={1: 500, 64: 2_000, 1024: 4_096},
    http_count=20_000,
    backlog_rate=5_000,
    backlog_seconds=40,
    device_image_bytes=8 * 1024**3,
    cost_unmeasured_count=448_000,
    cost_count=320_000,
    cost_peer_count=128_000,
    restart_round_count=5,
    restart_queue_count=1_000_000,
    restart_queue_count_few=10_000,
    restart_message_count=10_000_000,
    restart_body_bytes=100,
    restart_tail_count=65_536,
    create_count=64_000,
    create_journal_count=1_280,
)

QUICK = replace(
    FULL,
    name="quick",
    round_count=1,
    append_counts={
        (1 * KB, 1): 200,
        (1 * KB, 64): 32_000,
        (1 * KB, 1024): 32_768,
        (16 * KB, 1): 200,
        (16 * KB, 64): 3_200,
        (16 * KB, 1024): 4_096,
    },
    take_count=6_400,
    socket_counts={
        (1 * KB, 1): 20_000,
        (1 * KB, 16): 100_000,
        (16 * KB, 1): 5_000,
        (16 * KB, 16): 10_000,
    },
    deliver_trip_count=12,
    deliver_cycle_count=3,
    nats_counts={1: 100, 64: 300, 1024: 1_024},
    http_count=3_000,
    backlog_seconds=10,
    device_image_bytes=4 * 1024**3,
    cost_unmeasured_count=320_000,
    cost_count=128_000,
    cost_peer_count=25_600,
    restart_round_count=1,
    restart_queue_count=100_000,
    restart_message_count=400_000,
    restart_tail_count=65_536,
    create_count=12_800,
    create_journal_count=256,
)

SMOKE = replace(
    QUICK,
    name="smoke",
    queue_count=1_024,
    append_counts={(size, flight): 128 for size in BODY_SIZES for flight in (1, 64)},
    take_count=128,
    socket_counts={(size, pipelined): 640 for size in BODY_SIZES for pipelined in (1, 16)},
    deliver_trip_count=2,
    nats_counts={64: 64},
    http_count=64,
    backlog_rate=200,
    backlog_seconds=1,
    device_image_bytes=1024**3,
    cost_unmeasured_count=640,
    cost_count=640,
    cost_peer_count=640,
    restart_queue_count=2_000,
    restart_queue_count_few=200,
    restart_message_count=4_000,
    restart_tail_count=2_000,
    create_count=128,
    create_journal_count=64,
)

PLANS = {plan.name: plan for plan in (FULL, QUICK, SMOKE)}
