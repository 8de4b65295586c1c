"""How much is measured: all of it, a first look in a few minutes, or a proof that it runs."""

from dataclasses import dataclass, replace

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    round_count: int
    # Fan-out: one document.
    reader_count: int
    fan_out_update_count: int  # at most; a run ends by time
    fan_out_window: int  # updates under way
    fan_out_window_small: int
    fan_out_warm_count: int
    fan_out_warm_seconds: float
    fan_out_seconds: float
    # The same at a steady rate.
    paced_update_count: int
    paced_warm_count: int
    paced_updates_per_second: float
    # Many documents.
    document_count: int
    readers_each: int
    many_warm_count: int  # updates of each document
    many_update_count: int
    many_updates_per_second: float  # of all documents together
    # Until work that a server put off is done.
    rest_seconds: float
    # Idle documents.
    idle_count: int
    idle_base_count: int
    idle_settle_seconds: float
    idle_rest_seconds: float  # until what comes after opening is done
    idle_quiet_seconds: float  # ends before anyone's heartbeat
    idle_silence_seconds: float  # longer than anyone's heartbeat
    idle_empty_seconds: float  # the same before any document is open
    # Cold load.
    cold_update_count: int
    # Kill -9.
    kill_acknowledged_count: int
    kill_sent_count: int
    # A reader that never reads.
    stuck_total_bytes: int
    stuck_update_bytes: int
    stuck_window: int


FULL = Plan(
    name="full",
    round_count=3,
    reader_count=50,
    fan_out_update_count=100_000,
    fan_out_window=256,
    fan_out_window_small=16,
    fan_out_warm_count=4_000,
    fan_out_warm_seconds=1.0,
    fan_out_seconds=4.0,
    paced_update_count=3_100,
    paced_warm_count=100,
    paced_updates_per_second=100,
    document_count=100,
    readers_each=4,
    many_warm_count=20,
    many_update_count=50,
    many_updates_per_second=1_000,
    rest_seconds=1.0,
    idle_count=2_000,
    idle_base_count=200,
    idle_settle_seconds=3.0,
    idle_rest_seconds=10.0,
    idle_quiet_seconds=8.0,
    idle_silence_seconds=30.0,
    idle_empty_seconds=4.0,
    cold_update_count=100_000,
    kill_acknowledged_count=200,
    kill_sent_count=2_000,
    stuck_total_bytes=200 * MB,
    stuck_update_bytes=64 * 1024,
    stuck_window=16,
)

QUICK = replace(
    FULL,
    name="quick",
    round_count=1,
    fan_out_update_count=40_000,
    fan_out_seconds=2.0,
    paced_update_count=300,
    many_update_count=20,
    idle_silence_seconds=10.0,
    cold_update_count=20_000,
)

SMOKE = replace(
    QUICK,
    name="smoke",
    reader_count=4,
    fan_out_update_count=20_000,
    fan_out_warm_count=100,
    fan_out_warm_seconds=0.1,
    fan_out_seconds=0.3,
    paced_update_count=60,
    paced_warm_count=10,
    document_count=4,
    many_warm_count=2,
    many_update_count=5,
    rest_seconds=0.1,
    idle_count=40,
    idle_base_count=10,
    idle_settle_seconds=0.3,
    idle_rest_seconds=0.3,
    idle_quiet_seconds=0.5,
    idle_silence_seconds=0.5,
    idle_empty_seconds=0.5,
    cold_update_count=1_000,
    kill_acknowledged_count=50,
    kill_sent_count=500,
    stuck_total_bytes=4 * MB,
)

PLANS = {plan.name: plan for plan in (FULL, QUICK, SMOKE)}
