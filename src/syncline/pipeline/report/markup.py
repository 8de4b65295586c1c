"""HTML that is built, never pasted: what is text is escaped, whoever wrote it.

Names of documents, reasons and paths come from outside. Only what these functions made is HTML; any
other text goes through `escape`.
"""

import unicodedata
from collections.abc import Iterable
from html import escape
from typing import Final

# Elements that have no end.
_VOID: Final = frozenset({"br", "col", "hr", "img", "link", "meta"})


# What joins letters and signs to one another.
_JOINERS: Final = frozenset("\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | int | None | Iterable["Content"]


def joined(*parts: Content) -> Html:
    """Parts in a row: HTML as it is, anything else escaped, nothing for None."""
    return Html("".join(map(_part, parts)))


def _part(part: Content) -> str:
    match part:
        case None:
            return ""
        case Html():
            return part
        case str():
            return escape(_shown(part))
        case int():
            return str(part)
        case _:
            return joined(*part)


def element(name: str, /, *parts: Content, **attributes: str | int | bool | None) -> Html:
    """An attribute `class_` is `class`, `data_x` is `data-x`; False and None leave it out."""
    written = "".join(
        f" {_attribute_name(key)}"
        if value is True
        else f' {_attribute_name(key)}="{escape(_shown(str(value)))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(*parts)}</{name}>")


def _attribute_name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _shown(text: str) -> str:
    """Without characters that HTML has no place for, or that turn the text around them."""
    if text.isprintable():
        return text
    return "".join(each if _is_shown(each) else "\N{REPLACEMENT CHARACTER}" for each in text)


def _is_shown(character: str) -> bool:
    return (
        character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"
    )
