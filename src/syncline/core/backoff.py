"""How long to wait before the next attempt: twice as long each time, up to a cap, with jitter.

Jitter, because clients that lost the same router must not all come back at the same moment.
"""

FIRST_MS = 250
CAP_MS = 30_000


def delay_ms(attempt: int, chance: float, first_ms: int = FIRST_MS, cap_ms: int = CAP_MS) -> int:
    """The wait before attempt `attempt`, from 0. `chance` is between 0 and 1: half of the wait is
    certain, the rest is up to it. With 1 it is the whole wait."""
    # Beyond 2^32 the cap rules anyway, and the power stays small.
    whole = min(cap_ms, first_ms << min(attempt, 32))
    return whole // 2 + int(chance * (whole - whole // 2))
