"""Numbers, times and ids as people read them. Times are in UTC."""

from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from typing import Final

from syncline.values.ids import STREAM_ID_BYTES, StreamId

_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FACES: Final = {1: "documents", 2: "SMP", 3: "HTTP", 4: "MQTT"}
_FACE_BITS: Final = 4
# Text from outside is cut here: a page has room for so much of it.
TEXT_CHARACTERS_MAX: Final = 120
NOTHING: Final = "\N{EN DASH}"


def number(count: int) -> str:
    return f"{count:,}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 delivery`, `2 deliveries`."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def byte_text(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_BYTE_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {_BYTE_UNITS[unit]}"


def duration(ms: int) -> str:
    """`850 ms`, `1.2 s`, `3 min 20 s`, `5 h 10 min`, `2 d 3 h`."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    seconds = ms // 1000
    for size, name, next_size, next_name in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            rest = seconds % size // next_size
            return f"{seconds // size} {name}" + (f" {rest} {next_name}" if rest else "")
    return f"{seconds} s"


def moment(ms: int | None) -> str:
    """`2026-01-31 14:05:06`."""
    return _formatted(ms, "%Y-%m-%d %H:%M:%S")


def minute(ms: int | None) -> str:
    return _formatted(ms, "%Y-%m-%d %H:%M")


def hour(ms: int | None) -> str:
    return _formatted(ms, "%Y-%m-%d %H:00")


def _formatted(ms: int | None, form: str) -> str:
    if ms is None:
        return NOTHING
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)
    except (OverflowError, OSError, ValueError):
        # A clock that was far off.
        return f"{ms} ms"


def stream_text(stream: bytes | None) -> str:
    if not stream:
        return NOTHING
    if len(stream) == STREAM_ID_BYTES:
        return str(StreamId(stream))
    return urlsafe_b64encode(stream).decode()


def store_text(store: bytes) -> str:
    """The first eight digits: snapshots are named by the same."""
    return store.hex()[:8]


def session_text(session: int | None) -> str:
    """Over which protocol, and its number there."""
    if not session:
        return NOTHING
    face = session & ((1 << _FACE_BITS) - 1)
    return f"{_FACES.get(face, f'face {face}')} {session >> _FACE_BITS}"


def sequences(first: int | None, last: int | None) -> str:
    if first is None:
        return NOTHING
    return number(first) if not last or last <= first else f"{number(first)} to {number(last)}"


def cut(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"
