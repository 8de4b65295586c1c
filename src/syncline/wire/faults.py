"""Sentences about what is wrong with a message, in our own words.

The words of the JSON library may repeat what the peer wrote, and that may be a token.
"""

import re
from collections.abc import Mapping

_path = re.compile(r"at `\$\.([a-z_]+(?:\.[a-z_]+)*)")
_missing = re.compile(r"missing required field `([a-z_]+)`")


def describe(reason: str, rules: Mapping[str, str], otherwise: str) -> str:
    """What `msgspec.ValidationError` says, with the rule of the field that is at fault.

    `otherwise` is the sentence if it is no field but the whole.
    """
    missing = _missing.search(reason)
    path = missing or _path.search(reason)
    if path is None:
        return otherwise
    field = path.group(1)
    rule = rules.get(field.rpartition(".")[2], "of the type that the protocol gives it")
    return f"the field `{field}` {'is missing; it ' if missing else ''}must be {rule}"
