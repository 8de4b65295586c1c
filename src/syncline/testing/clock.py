"""A clock moved by hand, for whatever takes `now_ms` or a function that tells it."""

# A moment like any other, far from zero so that a forgotten offset shows.
START_MS = 1_700_000_000_000


class ManualClock:
    """Stands still until moved. Calling it tells the time, as a clock is asked for elsewhere."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, duration_ms: int) -> int:
        """Let time pass and return the new time."""
        if duration_ms < 0:
            raise ValueError("time passes forwards; a clock that is set back is `step_to`")
        self.now_ms += duration_ms
        return self.now_ms

    def step_to(self, now_ms: int) -> None:
        """Set the clock, back as well as forth, as an operator or a time server does."""
        self.now_ms = now_ms
