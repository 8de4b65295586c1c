"""Drawings as SVG that is part of the page.

- Text stays text, in the font of the page; colours are variables of its style. So both follow it
  into the dark and onto paper.
- The same drawing is the same text, always: ids come from its name, and nothing from a clock.
- A drawing is made at the size at which it is shown.
"""

import re
from io import StringIO
from typing import Any, Final, cast
from xml.etree import ElementTree

import matplotlib as mpl

from syncline.pipeline.report.drawing import SETTINGS, VARIABLES, Sheet
from syncline.pipeline.report.markup import Html, element

_COLOUR: Final = re.compile(r"#[0-9a-f]{6}")
_LONG_NUMBER: Final = re.compile(r"(-?\d+\.\d)\d+")
_SVG: Final = "{http://www.w3.org/2000/svg}"
_HREF: Final = "{http://www.w3.org/1999/xlink}href"
# Of the drawing as a whole; what is said there, the page says.
_LEFT_OUT: Final = (f"{_SVG}metadata", f"{_SVG}style")


def settings() -> Any:
    """A context in which drawings are made and written."""
    return cast(Any, mpl).rc_context(SETTINGS)


def written(sheet: Sheet, name: str, title: str, description: str) -> Html:
    """A drawing as an element of a page. `name` is its own among all on the page."""
    text = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with cast(Any, mpl).rc_context({"svg.hashsalt": name}):
        cast(Any, sheet.figure).savefig(text, format="svg", metadata=nothing)
    root = ElementTree.fromstring(text.getvalue())
    wanted = {value[1:] for each in root.iter() if (value := each.get(_HREF)) is not None}
    wanted |= {url[5:-1] for each in root.iter() if (url := each.get("clip-path")) is not None}
    inner = Html("".join(_node(child, f"{name}-", wanted) for child in root))
    titles = (
        element("title", title, id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
    )
    return element(
        "svg",
        *titles,
        inner,
        role="img",
        viewBox=f"0 0 {sheet.width} {sheet.height}",
        width=sheet.width,
        height=sheet.height,
        aria_labelledby=f"{name}-title {name}-desc",
    )


def _node(node: ElementTree.Element, prefix: str, wanted: set[str]) -> Html:
    """As SVG inside of HTML: no namespaces, no ids that nothing asks for, no long numbers."""
    name = node.tag.removeprefix(_SVG)
    children = Html("".join(_node(child, prefix, wanted) for child in node))
    if node.tag in _LEFT_OUT or (name in ("g", "defs") and not children):
        return Html()
    attributes: dict[str, str] = {}
    for key, found in node.attrib.items():
        plain = "href" if key == _HREF else key
        value = _value(plain, found, prefix, wanted)
        if value is not None:
            attributes[plain.replace("-", "_")] = value
    if name == "g" and not attributes:
        # A group that says nothing about what is in it.
        return children
    return element(name, (node.text or "").strip(), children, **attributes)


def _value(key: str, value: str, prefix: str, wanted: set[str]) -> str | None:
    match key:
        case "id":
            return prefix + value if value in wanted else None
        case "href":
            return f"#{prefix}{value[1:]}"
        case "clip-path":
            return f"url(#{prefix}{value[5:-1]})"
        case "transform" if value.startswith("rotate(-0 "):
            return None
        case "style":
            parts = [part.strip() for part in value.split(";")]
            kept = [part for part in parts if part and not part.startswith("font-family")]
            return _COLOUR.sub(_variable, "; ".join(kept)) or None
        case "d" | "x" | "y" | "transform":
            return _LONG_NUMBER.sub(r"\1", " ".join(value.split()))
        case _:
            return value


def _variable(match: re.Match[str]) -> str:
    return f"var({VARIABLES[match[0]]})"
