"""A server that a round talks to."""

from dataclasses import dataclass

from bench.support.processes import cpu_seconds


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)
