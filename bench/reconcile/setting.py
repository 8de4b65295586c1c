"""How much a bench measures, and to whom it speaks."""

from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.status import Status

from bench.reconcile.plan import Plan


@dataclass(slots=True)
class Setting:
    plan: Plan
    console: Console
    status: Status
    # New at every run, unless one is given: nothing was tuned on these sets.
    seed: int
    details: dict[str, object] = field(default_factory=dict)

    def random(self, part: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, part))

    def doing(self, what: str) -> None:
        self.status.update(what)
