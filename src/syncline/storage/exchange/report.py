"""What an import or an export has done so far."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

# Told one by one; beyond that, damaged streams are counted only.
_DAMAGE_TOLD_MAX: Final = 1_000


@dataclass(slots=True)
class ExchangeReport:
    """Counters, and the first damaged streams with what is wrong with them."""

    stream_count: int = 0
    entry_count: int = 0
    byte_count: int = 0
    # Lines that are no message, or one that has no place.
    skipped_line_count: int = 0
    # Entries that their state speaks of and that are not there.
    lost_entry_count: int = 0
    damaged_stream_count: int = 0
    # Streams whose entries have other sequences than before: the target counts from where it can.
    renumbered_stream_count: int = 0
    damage: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def add_damage(self, stream: str, reasons: list[str]) -> None:
        """One damaged stream, with all that is wrong with it."""
        if reasons:
            self.damaged_stream_count += 1
            if len(self.damage) < _DAMAGE_TOLD_MAX:
                self.damage.append((stream, "; ".join(reasons[:10])))


# Called after each commit and at the end, with the report as it stands.
Progress = Callable[[ExchangeReport], None]


def no_progress(report: ExchangeReport) -> None:
    """Nobody looks."""
