"""What an import or an export has done so far."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

# Told one by one; beyond that, damage is counted only.
_DAMAGE_TOLD_MAX: Final = 1_000


@dataclass(slots=True)
class ExchangeReport:
    """Counters, and the first that is damaged, with what is wrong with it."""

    stream_count: int = 0
    entry_count: int = 0
    byte_count: int = 0
    # Lines that are no message, or one that has no place.
    skipped_line_count: int = 0
    # Entries that their state speaks of and that are not there.
    lost_entry_count: int = 0
    damaged_stream_count: int = 0
    # Files with damage that belongs to no stream that is known.
    damaged_file_count: int = 0
    # Streams whose entries have other sequences than before: the target counts from where it can.
    renumbered_stream_count: int = 0
    # Streams and files, each with its flaws.
    damage: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    @property
    def is_whole(self) -> bool:
        """Whether everything that the source speaks of was there and was taken."""
        return not (
            self.damaged_stream_count
            or self.damaged_file_count
            or self.lost_entry_count
            or self.skipped_line_count
        )

    def add_damage(self, stream: str, reasons: list[str]) -> None:
        """One damaged stream, with all that is wrong with it."""
        if reasons:
            self.damaged_stream_count += 1
            self._tell(stream, reasons)

    def add_file_damage(self, file: str, reasons: list[str]) -> None:
        """One damaged file, with what is wrong with it as a whole."""
        if reasons:
            self.damaged_file_count += 1
            self._tell(file, reasons)

    def _tell(self, name: str, reasons: list[str]) -> None:
        if len(self.damage) < _DAMAGE_TOLD_MAX:
            self.damage.append((name, "; ".join(reasons[:10])))


# Called after each commit and at the end, with the report as it stands.
Progress = Callable[[ExchangeReport], None]


def no_progress(report: ExchangeReport) -> None:
    """Nobody looks."""
