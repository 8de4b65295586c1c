"""Patterns of document names: `*` is anything but a slash, `**` is anything, the rest is itself.

A name is followed through a pattern on all ways at once, so that no pattern, however full of stars,
takes longer than its length times that of the name.
"""

_STAR = "*"
_DOUBLE_STAR = "**"


class Pattern:
    """Matches whole names."""

    __slots__ = ("_parts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = _parts(text)

    def matches(self, name: str) -> bool:
        places = self._with_skipped_stars({0})
        for character in name:
            places = self._with_skipped_stars(
                {
                    place if self._parts[place] in (_STAR, _DOUBLE_STAR) else place + 1
                    for place in places
                    if place < len(self._parts) and _takes(self._parts[place], character)
                }
            )
        return len(self._parts) in places

    def _with_skipped_stars(self, places: set[int]) -> set[int]:
        """A star may stand for nothing."""
        found = set(places)
        for place in places:
            while place < len(self._parts) and self._parts[place] in (_STAR, _DOUBLE_STAR):
                place += 1
                found.add(place)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"


def _parts(text: str) -> tuple[str, ...]:
    """Characters and stars. Of stars in a row, an odd last one adds nothing."""
    parts: list[str] = []
    for character in text:
        if character == _STAR and parts and parts[-1] in (_STAR, _DOUBLE_STAR):
            parts[-1] = _DOUBLE_STAR
        else:
            parts.append(character)
    return tuple(parts)


def _takes(part: str, character: str) -> bool:
    # A literal star in a name is taken by a star as well.
    if part == _STAR:
        return character != "/"
    return part in (_DOUBLE_STAR, character)
